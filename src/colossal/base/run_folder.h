// The folder of one run and the names of what lies in it.
#pragma once
#include <string>

namespace colossal {

/// The lock on a run folder, held by the file `.lock` in it. Other processes cannot take it while this object lives.
class RunLock {
 public:
  /// Errors ("run"): another run holds the lock; the file cannot be opened.
  explicit RunLock(const std::string& folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Checks that the folder still holds the locked file. A folder that was deleted, moved or made again holds no file
  /// or another one, which another run may have locked.
  /// Errors ("run"): it does not. A file system that fails to answer is none: the caller's next write reports it.
  void check() const;

 private:
  std::string folder_;
  int descriptor_ = -1;
};

/// Only names until create() is called; cheap to copy.
class RunFolder {
 public:
  explicit RunFolder(std::string path) : path_(std::move(path)) {}
  /// Creates the folder, its parents and checkpoints/ and tensorboard/, and checks that it can be written to.
  void create() const;

  const std::string& path() const { return path_; }
  std::string config() const { return path_ + "/config.toml"; }  // resolved: every key with its value
  std::string metrics() const { return path_ + "/metrics.jsonl"; }
  std::string metric_names() const { return path_ + "/metrics.json"; }  // unit and plot of each name in metrics()
  std::string history() const { return path_ + "/history.jsonl"; }      // starts and samples
  std::string ranks() const { return path_ + "/ranks.jsonl"; }          // measurements of each rank
  std::string report() const { return path_ + "/report.html"; }
  // planned and measured, of a run in a pipeline
  std::string pipeline_trace() const { return path_ + "/pipeline_trace.json"; }
  std::string builtin_text() const { return path_ + "/builtin_text"; }  // what data.path = "builtin" was at the start
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  std::string tensorboard() const { return path_ + "/tensorboard"; }
  std::string log(int rank) const { return path_ + "/log-rank-" + std::to_string(rank) + ".txt"; }

 private:
  std::string path_;
};

}  // namespace colossal
