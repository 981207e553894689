// The group that sends nothing: of one rank, where there is nothing to send; of a rank whose peers are not there
// (make_idle_world); and of ranks whose collectives are switched off, by which tests prove that they would notice.
#pragma once
#include <memory>
#include <string>

#include "colossal/comm/backends/backend.h"

namespace colossal::comm {

/// size() ranks that never meet. Outputs hold what this rank alone knows: all_gather repeats its own input,
/// reduce_scatter keeps its own slice, all_to_all keeps its own input as far as it fits (zeros beyond), what comes from
/// another rank by broadcast or recv is zeros. With size 1 that is the right result of every collective. Arguments are
/// checked as by every other group. Tensors may be on any device, the meta device included.
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

}  // namespace colossal::comm
