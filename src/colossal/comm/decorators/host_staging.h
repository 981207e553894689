// Sends device tensors over a transport that supports only host memory.
#pragma once
#include <memory>

#include "colossal/comm/backends/backend.h"

namespace colossal::comm {

/// CPU tensors pass through. The calling thread copies other tensors to the host; Work::wait(), which must therefore
/// be called, copies the result back. This lets ranks exchange tensors even if they share one GPU, which NCCL refuses.
/// Cost: two copies over the bus and a synchronisation of the current stream per call. A broadcast makes only one
/// copy: to the host on the root, to the device elsewhere.
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
