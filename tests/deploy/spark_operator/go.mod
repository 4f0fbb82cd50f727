// The module of the Spark operator, for its resource definitions: deploy/spark is checked against them.
module streameval/tests/deploy/spark_operator

go 1.24

require github.com/kubeflow/spark-operator/v2 v2.3.0
