// A memory::OffloadStore that counts its calls and invalidates each tensor that its user may no longer read.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/memory/offload_store.h"

namespace colossal::test {

/// An offload store that keeps copies. It fills a tensor with NaN (77 for integers) after offload(), and a borrowed one
/// after return_borrowed(). Thread safety: one thread calls the members.
class CountingStore final : public memory::OffloadStore {
 public:
  /// The counts of one tensor that was stored.
  struct Count {
    int64_t numel = 0, prefetches = 0, borrows = 0, written = 0;
    bool is_borrowed = false, is_gone = false;
  };
  std::vector<Count> counts;  ///< counts of the tensors, in the order of offload()
  int64_t peak_borrowed = 0;  ///< maximum number of elements borrowed at one time
  /// The number of the tensor whose borrow() throws.
  size_t broken = static_cast<size_t>(-1);

  std::unique_ptr<memory::OffloadedTensor> offload(const at::Tensor& tensor) override {
    counts.push_back({.numel = tensor.numel()});
    auto offloaded = std::make_unique<Copy>(*this, counts.size() - 1, tensor.clone());
    spoil(tensor);
    return offloaded;
  }

  /// Returns the number of calls of borrow() for the tensors [first, end).
  int64_t borrows(size_t first = 0, size_t end = static_cast<size_t>(-1)) const {
    return sum(&Count::borrows, first, end);
  }
  int64_t written(size_t first = 0, size_t end = static_cast<size_t>(-1)) const {
    return sum(&Count::written, first, end);
  }
  int64_t prefetches() const { return sum(&Count::prefetches, 0, counts.size()); }
  int64_t borrowed() const {  ///< number of elements that are borrowed
    int64_t total = 0;
    for (const Count& count : counts) total += count.is_borrowed ? count.numel : 0;
    return total;
  }
  int64_t places() const {  ///< number of tensors whose values are stored
    return std::count_if(counts.begin(), counts.end(), [](const Count& count) { return !count.is_gone; });
  }
  void reset_counts() {
    for (Count& count : counts) count.prefetches = count.borrows = count.written = 0;
    peak_borrowed = 0;
  }

 private:
  struct Copy final : memory::OffloadedTensor {
    Copy(CountingStore& store, size_t number, at::Tensor value)
        : store(store), number(number), value(std::move(value)) {}
    ~Copy() override {
      count().is_gone = true;
      count().is_borrowed = false;
    }
    int64_t bytes() const override { return static_cast<int64_t>(value.nbytes()); }
    void prefetch() override { ++count().prefetches; }
    at::Tensor borrow() override {
      require(number != store.broken, "store", "tensor ", number, " is broken");
      EXPECT_FALSE(count().is_borrowed) << "tensor " << number << " is borrowed twice";
      ++count().borrows;
      count().is_borrowed = true;
      store.peak_borrowed = std::max(store.peak_borrowed, store.borrowed());
      return value.clone();
    }
    void return_borrowed(const at::Tensor& borrowed, bool changed) override {
      EXPECT_TRUE(count().is_borrowed) << "tensor " << number;
      EXPECT_EQ(borrowed.sizes(), value.sizes());
      EXPECT_EQ(borrowed.dtype(), value.dtype());
      count().is_borrowed = false;
      count().written += changed;
      EXPECT_TRUE(changed || !count().is_gone) << "tensor " << number << " was discarded and not written";
      if (changed) count().is_gone = false;
      if (changed) value.copy_(borrowed);
      spoil(borrowed);
    }
    void discard() override {
      count().is_borrowed = false;
      count().is_gone = true;
      spoil(value);
    }
    void replace(const at::Tensor& tensor) override {
      EXPECT_FALSE(count().is_borrowed) << "tensor " << number;
      EXPECT_EQ(tensor.sizes(), value.sizes());
      EXPECT_EQ(tensor.dtype(), value.dtype());
      count().is_gone = false;
      value.copy_(tensor);
      spoil(tensor);
    }
    Count& count() { return store.counts[number]; }

    CountingStore& store;
    size_t number;
    at::Tensor value;
  };

  static void spoil(const at::Tensor& tensor) {
    if (tensor.is_floating_point())
      at::Tensor(tensor).fill_(std::nan(""));
    else
      at::Tensor(tensor).fill_(77);
  }
  int64_t sum(int64_t Count::* what, size_t first, size_t end) const {
    int64_t total = 0;
    for (size_t i = first; i < std::min(end, counts.size()); ++i) total += counts[i].*what;
    return total;
  }
};

}  // namespace colossal::test
