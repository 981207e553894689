// Zeros that take memory only after they are written.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "colossal/base/error.h"
#include "colossal/ops/huge_pages.h"

namespace colossal::ops::lazy_zeros_test {
namespace {

/// Returns the bytes of the tensor's pages that are in memory.
int64_t resident(const at::Tensor& x) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> is_there((x.nbytes() + page - 1) / page);
  EXPECT_EQ(mincore(x.data_ptr(), x.nbytes(), is_there.data()), 0);
  int64_t pages = 0;
  for (const unsigned char flag : is_there) pages += flag & 1;
  return pages * static_cast<int64_t>(page);
}

TEST(LazyZeros, TakesMemoryOnlyWhenWritten) {
  const at::Tensor x = lazy_zeros({64, 1 << 18}, at::kFloat);  // 64 MiB
  EXPECT_EQ(x.sizes(), at::IntArrayRef({64, 1 << 18}));
  EXPECT_EQ(resident(x), 0);
  x[40].fill_(3);
  EXPECT_GE(resident(x), 1 << 20);
  EXPECT_LE(resident(x), 5 << 20);  // a row of 1 MiB, with huge pages of 2 MiB at both ends
  EXPECT_EQ(x.sum(at::kDouble).item<double>(), 3.0 * (1 << 18));
}

TEST(LazyZeros, SupportsAnyShapeAndDtype) {
  EXPECT_EQ(lazy_zeros({0, 3}, at::kBFloat16).numel(), 0);
  const at::Tensor x = lazy_zeros({3, 5}, at::kBFloat16);
  EXPECT_TRUE(x.equal(at::zeros({3, 5}, at::kBFloat16)));
  EXPECT_THROW(lazy_zeros({3}, at::device(at::kMeta)), Error);
  EXPECT_THROW(lazy_zeros({int64_t{1} << 60}, at::kByte), Error);
}

}  // namespace
}  // namespace colossal::ops::lazy_zeros_test
