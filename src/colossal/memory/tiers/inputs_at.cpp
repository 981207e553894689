#include "colossal/memory/tiers/inputs_at.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include <exception>
#include <limits>
#include <utility>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/memory/tiers/block_file.h"
#include "colossal/tensor/device_meant.h"

namespace colossal::memory {

/// The stored inputs of one function. Used by their owner, and by the inputs that were stored next, which announce
/// them. The mutex admits one call at a time.
struct InputsAt::Place {
  std::shared_ptr<OffloadStore> offload;
  std::vector<std::unique_ptr<OffloadedTensor>> offloaded;  // null: taken back
  std::mutex mutex{};

  void prefetch() {
    const std::lock_guard lock(mutex);
    for (const auto& one : offloaded)
      if (one) one->prefetch();
  }
};

/// The first error, which may occur in any of the threads that run forward and backward.
struct InputsAt::Failure {
  std::exception_ptr first{};
  std::mutex mutex{};

  void keep(std::exception_ptr error) {
    const std::lock_guard lock(mutex);
    if (!first) first = std::move(error);
  }
};

namespace {

/// Inputs that could not be offloaded.
struct InputsHere final : nn::OffloadedInputs {
  explicit InputsHere(std::vector<at::Tensor> inputs) : inputs(std::move(inputs)) {}
  std::vector<at::Tensor> take() override { return std::exchange(inputs, {}); }
  std::vector<at::Tensor> inputs;
};

/// Fills `x` with values that are visible in every result computed from it.
void spoil(const at::Tensor& x) {
  if (x.is_floating_point())
    x.fill_(std::numeric_limits<double>::quiet_NaN());
  else
    x.zero_();
}

}  // namespace

struct InputsAt::Inputs final : nn::OffloadedInputs {
  /// The sizes, strides and options from which an input is allocated again.
  struct Like {
    std::vector<int64_t> sizes, strides;
    at::TensorOptions options;
  };

  Inputs(std::shared_ptr<Place> place, std::weak_ptr<Place> before, std::shared_ptr<std::atomic<int64_t>> returned,
         std::shared_ptr<Failure> failure, const std::vector<at::Tensor>& inputs)
      : place(std::move(place)), before(std::move(before)), returned(std::move(returned)), failure(std::move(failure)) {
    for (const at::Tensor& x : inputs) {
      const bool is_dense = x.is_non_overlapping_and_dense();
      like.push_back({x.sizes().vec(), is_dense ? x.strides().vec() : at::infer_dense_strides(x.sizes(), x.strides()),
                      x.options()});
    }
  }

  std::vector<at::Tensor> take() override {
    const std::lock_guard lock(place->mutex);
    std::vector<at::Tensor> taken;
    for (size_t i = 0; i < like.size(); ++i) {
      taken.push_back(at::empty_strided(like[i].sizes, like[i].strides, like[i].options));
      try {
        place->offloaded[i]->copy_to(taken[i]);
      } catch (...) {
        failure->keep(std::current_exception());
        spoil(taken[i]);
      }
      *returned += static_cast<int64_t>(taken[i].nbytes());
    }
    // Announced after the inputs that are needed now, so that they load while their block runs backward.
    if (const auto next = before.lock()) next->prefetch();
    for (auto& offloaded : place->offloaded)
      offloaded.reset();  // their values are not needed any more, so they are never written
    return taken;
  }

  std::shared_ptr<Place> place;
  std::weak_ptr<Place> before;
  std::shared_ptr<std::atomic<int64_t>> returned;
  std::shared_ptr<Failure> failure;
  std::vector<Like> like;
};

InputsAt::InputsAt(std::shared_ptr<OffloadStore> offload, int64_t max_bytes, int64_t others)
    : offload_(std::move(offload)), failure_(std::make_shared<Failure>()), max_bytes_(max_bytes), others_(others) {}
InputsAt::~InputsAt() = default;

void InputsAt::rethrow() {
  const std::lock_guard lock(failure_->mutex);
  if (failure_->first) std::rethrow_exception(std::exchange(failure_->first, nullptr));
}

std::unique_ptr<nn::OffloadedInputs> InputsAt::offload(const std::vector<at::Tensor>& inputs) {
  try {
    return stored(inputs);
  } catch (...) {
    failure_->keep(std::current_exception());
    return std::make_unique<InputsHere>(inputs);
  }
}

std::unique_ptr<nn::OffloadedInputs> InputsAt::stored(const std::vector<at::Tensor>& inputs) {
  for (const at::Tensor& x : inputs) {
    const int64_t bytes = whole_blocks(static_cast<int64_t>(x.nbytes()));
    require(bytes <= max_bytes_ - others_, "memory", "the input of a recomputed block takes ", readable_bytes(bytes),
            ", but this rank's part of memory.host has ", readable_bytes(max_bytes_), ": \"",
            print_bytes(bytes + others_),
            "\" per rank of this machine is the smallest that works; more micro-batches (training.accumulate) make "
            "inputs smaller, or leave them out of memory.host with memory.recompute = \"none\"");
  }
  auto place = std::make_shared<Place>();
  place->offload = offload_;
  // The caller may overwrite an input before a store has copied it, if the store copies on a side stream of the device.
  for (const at::Tensor& x : inputs)
    place->offloaded.push_back(offload_->offload(tensor::is_for_accelerator(x) ? x.clone() : x));
  std::weak_ptr<Place> before = place;
  {
    const std::lock_guard lock(mutex_);
    std::swap(before, last_);
  }
  return std::make_unique<Inputs>(std::move(place), std::move(before), bytes_returned_, failure_, inputs);
}

}  // namespace colossal::memory
