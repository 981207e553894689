// The two groups that send nothing: of one rank, where there is nothing to send, and "off", which tests use to prove
// that they would notice missing collectives.
#pragma once
#include <memory>
#include <string>

#include "colossal/comm/backends/backend.h"

namespace colossal::comm {

/// size() ranks that never meet. Outputs hold what this rank alone knows: all_gather repeats its own input,
/// reduce_scatter keeps its own slice, all_to_all keeps its own input as far as it fits (zeros beyond), what comes from
/// another rank by broadcast or recv is zeros. With size 1 that is the right result of every collective. Arguments are
/// checked as by every other group.
class IdleGroup : public Backend {
 public:
  IdleGroup(std::string name, int rank, int size) : name_(std::move(name)), rank_(rank), size_(size) {}

  const std::string& name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Work issue(const Call& call) override;
  void abort(const std::string&) noexcept override {}

 private:
  const std::string name_;
  const int rank_, size_;
};

std::shared_ptr<Backend> make_null_group(const std::string& name);
std::shared_ptr<Backend> make_off_group(const std::string& name, int rank, int size);

}  // namespace colossal::comm
