"""Build a world from the raw HetRec 2011 files of Last.fm or Delicious: likes, friendships, and tags of items.

Items are artists or bookmarks. They become points by the words of their tags. Users become clusters by their
friendships. LinUCB trains the policies: the logging policy on all clusters equally, and one candidate on each cluster.
Needs scikit-learn.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from contest import Floats
from numpy.typing import NDArray

from streameval import InputError
from streameval.simulation import World

Integers = NDArray[np.int64]

DIMENSIONS = 25
CLUSTERS = 10
ROUNDS = 100_000
"""Training rounds per policy."""
ACTIONS = 25
AFFINITY = 0.1
"""Similarity of two users: exp(-0.1 d), with d the number of people who are a friend of only one of them."""
BATCH = 100
CONFIDENCE_WIDTH = 0.1
"""Exploration parameter alpha of LinUCB."""


class Raw(NamedTuple):
    """Hold the files as pairs of numbers from 0.

    Only items with a tag are kept, and only users who like such an item.

    Args:
        likes: Pairs of user and item.
        words: Pairs of item and word of a tag.
        friends: Pairs of users.
    """

    likes: Integers
    words: Integers
    friends: Integers


def read_raw(directory: Path, tagged_only: bool = False) -> Raw:
    """Read the files of hetrec2011-lastfm-2k or hetrec2011-delicious-2k, plain or gzipped.

    Args:
        directory: Directory with the files.
        tagged_only: Whether users like what they tagged, as on Delicious, in place of what they listened to.

    Raises:
        InputError: A file is missing.
    """
    tagged = _numbers(directory, "user_taggedartists.dat", "user_taggedbookmarks.dat")[:, :3]
    is_delicious = _file(directory, "user_taggedbookmarks.dat") is not None
    likes = tagged if tagged_only or is_delicious else _numbers(directory, "user_artists.dat")
    friends = _numbers(directory, "user_friends.dat", "user_contacts.dat")[:, :2]
    items = np.unique(tagged[:, 1])
    likes = np.unique(likes[np.isin(likes[:, 1], items), :2], axis=0)
    users = np.unique(likes[:, 0])
    friends = friends[np.isin(friends, users).all(axis=1)]
    words: dict[str, int] = {}
    words_of = {
        int(tag): [words.setdefault(word, len(words)) for word in re.split("[ -]", text.replace("'", ""))]
        for tag, text in _rows(directory, "tags.dat")
    }
    return Raw(
        np.column_stack([np.searchsorted(users, likes[:, 0]), np.searchsorted(items, likes[:, 1])]),
        np.array([(np.searchsorted(items, item), word) for _, item, tag in tagged for word in words_of[tag]]),
        np.searchsorted(users, friends),
    )


def _numbers(directory: Path, *names: str) -> Integers:
    return np.array(_rows(directory, *names), dtype=np.int64)


def _rows(directory: Path, *names: str) -> list[list[str]]:
    """Return the rows of the first of these files that exists."""
    path = next(filter(None, (_file(directory, name) for name in names)), None)
    if path is None:
        hint = "download hetrec2011-lastfm-2k or hetrec2011-delicious-2k, and unpack it there"
        raise InputError(f"{directory} has no {' or '.join(names)}", hint=hint)
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="latin-1") as lines:
        return [line.rstrip("\n").split("\t") for line in list(lines)[1:]]


def _file(directory: Path, name: str) -> Path | None:
    return next((path for path in (directory / name, directory / f"{name}.gz") if path.exists()), None)


def item_features(words: Integers) -> Floats:
    """Embed items in 25 dimensions by truncated SVD of the sublinear TF-IDF of the words of their tags."""
    from scipy.sparse import coo_matrix
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfTransformer

    counts = coo_matrix((np.ones(len(words)), words.T)).tocsr()
    weights = TfidfTransformer(sublinear_tf=True).fit_transform(counts)
    return np.asarray(TruncatedSVD(DIMENSIONS, random_state=0).fit_transform(weights))


def user_clusters(friends: Integers, users: int) -> Integers:
    """Divide users into ten clusters with common friends, the largest first."""
    from sklearn.cluster import SpectralClustering

    friend = np.zeros((users, users))
    friend[friends[:, 0], friends[:, 1]] = friend[friends[:, 1], friends[:, 0]] = 1.0
    shared = friend @ friend.T
    count = shared.diagonal()
    alike = np.exp(-AFFINITY * (count[:, None] + count - 2 * shared))
    labels = SpectralClustering(CLUSTERS, affinity="precomputed", random_state=0).fit_predict(alike)
    rank = np.argsort(np.argsort(-np.bincount(labels, minlength=CLUSTERS), kind="stable"))
    return np.asarray(rank[labels], dtype=np.int64)


class Likes(NamedTuple):
    """Hold the liked items of users.

    Args:
        start: User u likes `items[start[u]:start[u + 1]]`.
        items: Items of all users.
        cluster: Cluster of each user.
    """

    start: Integers
    items: Integers
    cluster: Integers

    @classmethod
    def from_pairs(cls, likes: Integers, cluster: Integers) -> Likes:
        """Build from pairs of user and item."""
        user, item = np.unique(likes, axis=0).T
        return cls(np.searchsorted(user, np.arange(len(cluster) + 1)), item, cluster)

    def draw(self, clusters: Integers, random: np.random.Generator) -> Integers:
        """Draw a random liked item of a random user in each of these clusters, [n]."""
        user = np.array([random.choice(np.flatnonzero(self.cluster == cluster)) for cluster in clusters])
        return np.asarray(self.items[random.integers(self.start[user], self.start[user + 1])])


def linucb(features: Floats, likes: Likes, clusters: Integers, random: np.random.Generator) -> Floats:
    """Learn linear scores by LinUCB from users of these clusters, one round each.

    It updates after every 100 rounds. A round offers one liked item and 24 random ones. Source: Li, Chu, Langford &
    Schapire, WWW 2010.
    """
    gram, product = np.eye(DIMENSIONS), np.zeros(DIMENSIONS)
    for batch in clusters.reshape(-1, BATCH):
        others = random.integers(len(features), size=(BATCH, ACTIONS - 1))
        offered = features[np.column_stack([likes.draw(batch, random), others])]
        inverse = np.linalg.inv(gram)
        doubt = np.sqrt(np.einsum("nad,nad->na", offered @ inverse, offered))
        chosen = (offered @ (inverse @ product) + CONFIDENCE_WIDTH * doubt).argmax(axis=1)
        seen = offered[np.arange(BATCH), chosen]
        gram += seen.T @ seen
        product += seen.T @ (chosen == 0)
    return np.asarray(np.linalg.solve(gram, product), dtype=np.float64)


def prepare(raw: Raw, progress: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Build the arrays of a world.

    Args:
        raw: Raw files.
        progress: Called after each of the 11 policies is trained.
    """
    features = item_features(raw.words)
    users = int(raw.likes[:, 0].max()) + 1
    likes = Likes.from_pairs(raw.likes, user_clusters(raw.friends, users))
    random = np.random.default_rng(0)
    mixtures = [random.integers(CLUSTERS, size=ROUNDS), *(np.full(ROUNDS, cluster) for cluster in range(CLUSTERS))]
    theta = []
    for clusters in mixtures:
        theta.append(linucb(features, likes, clusters, random))
        progress()
    arrays = {
        "item_features": features,
        "user_indptr": likes.start,
        "user_items": likes.items,
        "user_cluster": likes.cluster,
        "theta": np.array(theta),
    }
    greedy = World.from_arrays(arrays, exploration=0.0)
    return {**arrays, "V_cluster_policy": greedy.value}
