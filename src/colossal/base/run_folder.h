// The folder of one run and the names of what lies in it.
#pragma once
#include <memory>
#include <string>

namespace colossal {

/// Only names until create() is called; cheap to copy.
class RunFolder {
 public:
  explicit RunFolder(std::string path) : path_(std::move(path)) {}
  /// Creates the folder, its parents and checkpoints/ and tensorboard/, and checks that it can be written to.
  void create() const;
  /// Keeps other processes from writing to the folder while the result lives. Errors: another run holds it.
  std::shared_ptr<const void> lock() const;

  const std::string& path() const { return path_; }
  std::string config() const { return path_ + "/config.toml"; }  // resolved: every key with its value
  std::string metrics() const { return path_ + "/metrics.jsonl"; }
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
