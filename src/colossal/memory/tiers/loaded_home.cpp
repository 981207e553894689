#include "colossal/memory/tiers/loaded_home.h"

#include <ATen/ATen.h>

#include <exception>
#include <optional>
#include <utility>

#include "colossal/memory/tiers/aligned_tensor.h"
#include "colossal/memory/tiers/block_file.h"

namespace colossal::memory {
namespace {

/// Tensors that are foretold in the first pass: the one in use, the next one and one on its way behind them.
constexpr size_t kExpected = 2;

}  // namespace

/// A tensor of the home, without values until it is filled.
struct LoadedHome::Waiting final : Kept {
  Waiting(LoadedHome& given, const at::Tensor& tensor, bool travels)
      : home(given), sizes(tensor.sizes().vec()), options(tensor.options()), taken(whole_blocks(tensor.nbytes())) {
    if (!travels) return;
    place = home.travelling_.size();
    home.travelling_.push_back(this);
  }
  ~Waiting() override {
    if (travels()) home.travelling_[*place] = nullptr;
  }

  int64_t bytes() const override { return taken; }
  void expect() override {
    if (kept) kept->expect();
  }

  at::Tensor bring() override {
    if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
    if (!kept) return empty_aligned(sizes, options);
    at::Tensor lent = kept->bring();
    for (size_t i = 1; travels() && i <= kExpected && *place + i < home.travelling_.size(); ++i)
      if (Waiting* next = home.travelling_[*place + i]) next->expect();
    return lent;
  }

  void put(const at::Tensor& lent, bool changed) override {
    if (kept) return kept->put(lent, changed);
    if (!changed) return;  // nobody filled it
    try {
      replace(lent);
    } catch (...) {
      failure = std::current_exception();
    }
  }

  void forget() override { kept.reset(); }

  void replace(const at::Tensor& tensor) override {
    if (kept) return kept->replace(tensor);
    kept = travels() ? home.others_->keep(tensor) : InPlace().keep(tensor);
  }

  bool travels() const { return place.has_value(); }

  LoadedHome& home;
  std::vector<int64_t> sizes;
  at::TensorOptions options;
  int64_t taken;
  std::optional<size_t> place{};  // in home.travelling_
  std::unique_ptr<Kept> kept{};
  std::exception_ptr failure{};
};

LoadedHome::LoadedHome(std::shared_ptr<Home> others, const Residence& residence)
    : others_(std::move(others)), residence_(residence) {}

/// Whether a tensor stays that comes now. Of those that need not, the first and then every one by which the share that
/// stays falls behind: so a table that is read first and last in a pass, that of a tied head, is among them.
bool LoadedHome::stays(int64_t bytes) {
  if (bytes > residence_.largest) return true;
  const int64_t may_stay = residence_.stays - residence_.above_largest, all = residence_.all - residence_.above_largest;
  const bool is_behind = static_cast<double>(spread_stayed_) * static_cast<double>(all) <=
                         static_cast<double>(spread_) * static_cast<double>(may_stay);
  spread_ += bytes;
  if (!is_behind || spread_stayed_ + bytes > may_stay) return false;
  spread_stayed_ += bytes;
  return true;
}

std::unique_ptr<Kept> LoadedHome::keep(const at::Tensor& tensor) {
  const int64_t bytes = whole_blocks(static_cast<int64_t>(tensor.nbytes()));
  const bool stay = stays(bytes);
  if (stay) stayed_ += bytes;
  return std::make_unique<Waiting>(*this, tensor, !stay);
}

}  // namespace colossal::memory
