"""Build a world from the raw HetRec 2011 files: listening data, friendships, and tags of artists.

Artists become points by the words of their tags. Users become clusters by their friendships. LinUCB trains the
policies: the logging policy on all clusters equally, and one candidate on each cluster. Needs scikit-learn.
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

    Only artists with a tag are kept, and only users who listened to such an artist.

    Args:
        listens: Pairs of user and artist.
        words: Pairs of artist and word of a tag.
        friends: Pairs of users.
    """

    listens: Integers
    words: Integers
    friends: Integers


def read_raw(directory: Path) -> Raw:
    """Read the files of hetrec2011-lastfm-2k, plain or gzipped.

    Raises:
        InputError: A file is missing.
    """
    tagged = _numbers(directory, "user_taggedartists.dat")[:, 1:3]
    listens = _numbers(directory, "user_artists.dat")[:, :2]
    friends = _numbers(directory, "user_friends.dat")[:, :2]
    artists = np.unique(tagged[:, 0])
    listens = listens[np.isin(listens[:, 1], artists)]
    users = np.unique(listens[:, 0])
    friends = friends[np.isin(friends, users).all(axis=1)]
    words: dict[str, int] = {}
    words_of = {
        int(tag): [words.setdefault(word, len(words)) for word in re.split("[ -]", text.replace("'", ""))]
        for tag, text in _rows(directory, "tags.dat")
    }
    return Raw(
        np.column_stack([np.searchsorted(users, listens[:, 0]), np.searchsorted(artists, listens[:, 1])]),
        np.array([(np.searchsorted(artists, artist), word) for artist, tag in tagged for word in words_of[tag]]),
        np.searchsorted(users, friends),
    )


def _numbers(directory: Path, name: str) -> Integers:
    return np.array(_rows(directory, name), dtype=np.int64)


def _rows(directory: Path, name: str) -> list[list[str]]:
    for path, reader in ((directory / name, open), (directory / f"{name}.gz", gzip.open)):
        if path.exists():
            with reader(path, "rt", encoding="latin-1") as lines:
                return [line.rstrip("\n").split("\t") for line in list(lines)[1:]]
    raise InputError(f"{directory} has no {name}", hint="download hetrec2011-lastfm-2k and unpack it there")


def item_features(words: Integers) -> Floats:
    """Embed artists in 25 dimensions by truncated SVD of the sublinear TF-IDF of the words of their tags."""
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
    def from_listens(cls, listens: Integers, cluster: Integers) -> Likes:
        """Build from pairs of user and artist."""
        user, artist = np.unique(listens, axis=0).T
        return cls(np.searchsorted(user, np.arange(len(cluster) + 1)), artist, cluster)

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
    users = int(raw.listens[:, 0].max()) + 1
    likes = Likes.from_listens(raw.listens, user_clusters(raw.friends, users))
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
