// Lets tensors of a device travel over a transport that knows host memory only.
#pragma once
#include <memory>

#include "colossal/comm/backends/backend.h"

namespace colossal::comm {

/// CPU tensors pass through. Others are copied to the host by the calling thread, exchanged, and copied back in
/// Work::wait(), which must therefore be called. So ranks that share one GPU can exchange, which NCCL refuses.
/// Cost: two copies over the bus and a synchronisation of the current stream per call; of a broadcast one copy, down on
/// the root and up elsewhere.
class HostStaging : public Backend {
 public:
  explicit HostStaging(std::shared_ptr<Backend> inner) : inner_(std::move(inner)) {}

  const std::string& name() const override { return inner_->name(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Work issue(const Call& call) override;
  void abort(const std::string& reason) noexcept override { inner_->abort(reason); }

 private:
  std::shared_ptr<Backend> inner_;
};

}  // namespace colossal::comm
