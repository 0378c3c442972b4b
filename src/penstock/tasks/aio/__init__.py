"""Parts of tasks that await: the source of `penstock.tasks.blocking`."""
