// The folder of one run, and the names of the files in it.
#pragma once
#include <string>

namespace colossal {

/// A lock on a run folder, by its file `.lock`. Other processes cannot take the lock while this object lives. A child
/// made by fork() does not hold it: the lock ends with this object, or with the process that made it if it has no
/// children.
class RunLock {
 public:
  /// Takes the lock. Errors ("run"): another run holds the lock; the file cannot be opened or locked.
  explicit RunLock(const std::string& folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Checks that the folder still has the locked file. A folder that was deleted, moved or made again has no such file,
  /// or another one that another run may have locked.
  /// Errors ("run"): the file was removed or replaced. A file system that fails to answer is no error here, because the
  /// caller's next write reports it.
  void check() const;

 private:
  std::string folder_;
  int descriptor_ = -1;
  int process_ = 0;  // id of the process that took the lock
};

/// The paths of a run folder. The object holds names only and is cheap to copy; create() creates the folder.
class RunFolder {
 public:
  explicit RunFolder(std::string path) : path_(std::move(path)) {}
  /// Creates the folder, its parents and its folders checkpoints/ and tensorboard/.
  /// Errors ("run"): the path is empty; the folder cannot be written to. Errors ("file"): it cannot be created.
  void create() const;

  const std::string& path() const { return path_; }
  std::string config() const { return path_ + "/config.toml"; }  ///< resolved config: every key with its value
  std::string metrics() const { return path_ + "/metrics.jsonl"; }
  std::string metric_names() const { return path_ + "/metrics.json"; }  ///< unit and plot of each name in metrics()
  std::string history() const { return path_ + "/history.jsonl"; }      ///< starts of the run and samples
  std::string ranks() const { return path_ + "/ranks.jsonl"; }          ///< measurements of each rank
  std::string report() const { return path_ + "/report.html"; }
  std::string prediction() const { return path_ + "/prediction.json"; }  ///< prediction of a step, as `plan --json`
  /// The planned and the measured timeline of a pipeline run.
  std::string pipeline_trace() const { return path_ + "/pipeline_trace.json"; }
  std::string builtin_text() const { return path_ + "/builtin_text"; }  ///< text of data.path = "builtin" at the start
  std::string samples() const { return path_ + "/samples"; }  ///< pictures and other files that the model made
  /// Log-probabilities of a reference (align/score_cache.h).
  std::string reference() const { return path_ + "/reference"; }
  /// The same of a run that starts, until its files replace those of an earlier run.
  std::string next_reference() const { return path_ + "/reference.next"; }
  std::string matmul() const {
    return path_ + "/matmul";
  }  ///< the libraries of products that the run chose at its start
  std::string chains() const { return path_ + "/chains.jsonl"; }  ///< what data.path has of structures of proteins
  std::string rollouts() const { return path_ + "/rollouts"; }    ///< answers that the model drew in training, by step
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  std::string tensorboard() const { return path_ + "/tensorboard"; }
  std::string log(int rank) const { return path_ + "/log-rank-" + std::to_string(rank) + ".txt"; }

 private:
  std::string path_;
};

}  // namespace colossal
