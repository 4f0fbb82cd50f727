// Says what the published schemas have against the manifests of a JSON file: node validate.mjs FILE
import { readFileSync } from "node:fs";

let wrong = 0;
for (const manifest of JSON.parse(readFileSync(process.argv[2], "utf8"))) {
  const { apiVersion, kind } = manifest;
  const owner = { "monitoring.coreos.com": "prometheus-operator", "argoproj.io": "argo-rollouts" }[apiVersion.split("/")[0]];
  const models = owner ? `@kubernetes-models/${owner}` : "kubernetes-models";
  const { [kind]: Model } = await import(`${models}/${apiVersion}`);
  try {
    new Model(manifest).validate();
  } catch (error) {
    wrong = 1;
    console.log(`${kind}: ${error.message}`);
  }
}
process.exitCode = wrong;
