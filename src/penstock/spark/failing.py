"""The former name of `penstock.spark.dead_letters`."""

raise ImportError("penstock.spark.failing is now penstock.spark.dead_letters")
