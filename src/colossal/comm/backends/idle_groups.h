// A group that sends nothing. It serves groups of one rank, ranks without peers (make_simulated_world), and ranks whose
// collectives are switched off, with which tests prove that they would notice missing communication.
#pragma once
#include <memory>
#include <string>

#include "colossal/comm/backends/backend.h"

namespace colossal::comm {

/// size() ranks that never communicate. Outputs hold only this rank's own data: all_gather repeats its input,
/// reduce_scatter keeps its own slice, and all_to_all keeps its input as far as it fits (zeros beyond). A broadcast or
/// recv from another rank gives zeros. With size 1 these are the right results of every collective. Arguments are
/// checked as in every other group. Tensors may be on any device, including the meta device.
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
