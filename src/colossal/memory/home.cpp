#include "colossal/memory/home.h"

namespace colossal::memory {
namespace {

struct Here final : Kept {
  explicit Here(at::Tensor tensor) : tensor(std::move(tensor)) {}
  at::Tensor bring() override { return tensor; }
  void put(const at::Tensor&, bool) override {}
  void forget() override { tensor.reset(); }
  void replace(const at::Tensor& other) override { tensor = other; }
  at::Tensor tensor;
};

}  // namespace

std::unique_ptr<Kept> InPlace::keep(const at::Tensor& tensor) { return std::make_unique<Here>(tensor); }

}  // namespace colossal::memory
