// A module whose parameters are on meta for a while.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace colossal::trace {

/// Gives the parameters of a module to meta, and copies of its buffers to forward, during its lifetime. Handles and
/// views that others hold stay valid; the module has its own values again afterwards, also after an exception. Buffers
/// on meta stay there. Memory: a copy of the buffers. No other thread may use the module meanwhile.
class ModuleOnMeta {
 public:
  explicit ModuleOnMeta(torch::nn::Module& module);
  ~ModuleOnMeta();
  ModuleOnMeta(const ModuleOnMeta&) = delete;
  ModuleOnMeta& operator=(const ModuleOnMeta&) = delete;

  /// Each parameter once, under its first name; shared ones have one.
  const std::vector<std::pair<std::string, at::Tensor>>& parameters() const { return parameters_; }
  const std::vector<std::pair<std::string, at::Tensor>>& buffers() const { return buffers_; }
  /// Gives the tensor to meta, with its values back at the end.
  void give(const at::Tensor& tensor);
  /// Returns the device of the first parameter or buffer that is not on meta, else the CPU.
  at::Device device() const { return device_; }

 private:
  void replace(const at::Tensor& tensor, const at::Tensor& by);
  void restore();

  std::vector<std::pair<std::string, at::Tensor>> parameters_, buffers_;
  std::vector<std::pair<at::Tensor, at::Tensor>> replaced_;  ///< tensors and holders of their values
  at::Device device_ = at::Device(at::kCPU);
};

}  // namespace colossal::trace
