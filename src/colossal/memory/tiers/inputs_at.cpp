#include "colossal/memory/tiers/inputs_at.h"

#include <ATen/ATen.h>

#include <exception>
#include <limits>
#include <utility>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/memory/tiers/block_file.h"
#include "colossal/tensor/elsewhere.h"

namespace colossal::memory {

/// What is kept, for its own input and for the one that was kept next, which expects it: one call at a time.
struct InputsAt::Place {
  std::shared_ptr<Home> home;
  std::unique_ptr<Kept> kept;
  std::mutex mutex{};

  void expect() {
    const std::lock_guard lock(mutex);
    if (kept) kept->expect();
  }
};

/// Of one of the threads that go forward and backward.
struct InputsAt::Failure {
  std::exception_ptr first{};
  std::mutex mutex{};

  void keep(std::exception_ptr error) {
    const std::lock_guard lock(mutex);
    if (!first) first = std::move(error);
  }
};

namespace {

/// One that could not leave.
struct InputHere final : nn::KeptInput {
  explicit InputHere(const at::Tensor& x) : x(x) {}
  at::Tensor take() override { return std::exchange(x, {}); }
  at::Tensor x;
};

/// Shows in whatever is made of it.
void spoil(const at::Tensor& x) {
  if (x.is_floating_point())
    x.fill_(std::numeric_limits<double>::quiet_NaN());
  else
    x.zero_();
}

}  // namespace

struct InputsAt::Input final : nn::KeptInput {
  Input(std::shared_ptr<Place> place, std::weak_ptr<Place> before, std::shared_ptr<std::atomic<int64_t>> returned,
        std::shared_ptr<Failure> failure, const at::Tensor& x)
      : place(std::move(place)),
        before(std::move(before)),
        returned(std::move(returned)),
        failure(std::move(failure)),
        like(at::empty_like(x, x.options().device(at::kMeta))),
        device(x.device()) {}

  at::Tensor take() override {
    at::Tensor taken = at::empty_strided(like.sizes(), like.strides(), like.options().device(device));
    {
      const std::lock_guard lock(place->mutex);
      try {
        place->kept->copy_to(taken);
      } catch (...) {
        failure->keep(std::current_exception());
        spoil(taken);
      }
      // Behind the one that is wanted now, and while its block goes backward.
      if (const auto next = before.lock()) next->expect();
      *returned += static_cast<int64_t>(taken.nbytes());
      place->kept.reset();  // nobody wants it any more: nothing is written
    }
    return taken;
  }

  std::shared_ptr<Place> place;
  std::weak_ptr<Place> before;
  std::shared_ptr<std::atomic<int64_t>> returned;
  std::shared_ptr<Failure> failure;
  at::Tensor like;  // of no memory
  at::Device device;
};

InputsAt::InputsAt(std::shared_ptr<Home> home, int64_t most_bytes, int64_t others)
    : home_(std::move(home)), failure_(std::make_shared<Failure>()), most_bytes_(most_bytes), others_(others) {}
InputsAt::~InputsAt() = default;

void InputsAt::rethrow() {
  const std::lock_guard lock(failure_->mutex);
  if (failure_->first) std::rethrow_exception(std::exchange(failure_->first, nullptr));
}

std::unique_ptr<nn::KeptInput> InputsAt::keep(const at::Tensor& x) {
  try {
    return kept(x);
  } catch (...) {
    failure_->keep(std::current_exception());
    return std::make_unique<InputHere>(x);
  }
}

std::unique_ptr<nn::KeptInput> InputsAt::kept(const at::Tensor& x) {
  const int64_t bytes = whole_blocks(static_cast<int64_t>(x.nbytes()));
  require(bytes <= most_bytes_ - others_, "memory", "the input of a recomputed block takes ", readable_bytes(bytes),
          ", but this rank's part of memory.host has ", readable_bytes(most_bytes_), ": \"",
          print_bytes(bytes + others_),
          "\" per rank of this machine is the smallest that works; more micro-batches (training.accumulate) make "
          "inputs smaller, or leave them out of memory.host with memory.recompute = \"none\"");
  // The caller may overwrite `x`, which a home that copies it beside the device's current stream would find out.
  auto place = std::make_shared<Place>(home_, home_->keep(tensor::is_elsewhere(x) ? x.clone() : x));
  std::weak_ptr<Place> before = place;
  {
    const std::lock_guard lock(mutex_);
    std::swap(before, last_);
  }
  return std::make_unique<Input>(std::move(place), std::move(before), bytes_returned_, failure_, x);
}

}  // namespace colossal::memory
