// Memory of the host for transfers: tensors that cover whole blocks of a disk, and buffers that reuse their pages.
#include "colossal/memory/tiers/host_buffers.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "colossal/memory/tiers/aligned_tensor.h"

namespace colossal::memory::host_buffers_test {
namespace {

TEST(AlignedTensor, CoversWholeBlocks) {
  for (const int64_t size : {0, 1, 1000, 4096, 100'000, 3'000'000})
    for (const at::ScalarType dtype : {at::kByte, at::kBFloat16, at::kDouble}) {
      const at::Tensor tensor = empty_aligned({size, 3}, dtype);
      EXPECT_EQ(tensor.sizes(), at::IntArrayRef({size, 3}));
      EXPECT_EQ(tensor.scalar_type(), dtype);
      EXPECT_TRUE(is_aligned(tensor));
      if (size > 1 && size % 4096 != 0) {
        EXPECT_FALSE(is_aligned(tensor.narrow(0, 1, size - 1)));
      }
    }
  EXPECT_EQ(empty_aligned({}, at::kFloat).dim(), 0);
  const at::Tensor owner = empty_aligned({8192}, at::kByte);
  EXPECT_FALSE(is_aligned(at::from_blob(owner.data_ptr(), {5000}, at::kByte))) << "who knows what comes behind it";
  EXPECT_TRUE(is_aligned(at::from_blob(owner.data_ptr(), {8192}, at::kByte).narrow(0, 0, 5000)));
}

TEST(AlignedTensor, ResizesWithinItsPages) {
  constexpr int64_t kMiB = 1 << 20;
  at::Tensor buffer = empty_aligned({3 * kMiB}, at::kByte).fill_(7);
  for (const int64_t bytes : {5 * kMiB, 3 * kMiB + 4096, 9 * kMiB, 2 * kMiB}) {
    const at::Tensor resized = resized_aligned(buffer, bytes);
    ASSERT_TRUE(resized.defined());
    ASSERT_EQ(resized.sizes(), at::IntArrayRef({bytes}));
    EXPECT_TRUE(is_aligned(resized));
    EXPECT_EQ(buffer.storage().nbytes(), 0u) << "what it was has no memory";
    const int64_t kept = std::min(buffer.numel(), bytes);
    EXPECT_TRUE(at::equal(resized.narrow(0, 0, kept), at::full({kept}, 7, at::kByte)));
    EXPECT_EQ(resized.narrow(0, kept, bytes - kept).sum().item<int64_t>(), 0) << "new pages are zeros";
    buffer = resized.fill_(7);
  }
  {
    const at::Tensor view = buffer.narrow(0, 0, 1);
    EXPECT_FALSE(resized_aligned(buffer, 3 * kMiB).defined()) << "somebody may look at it";
  }
  EXPECT_FALSE(resized_aligned(buffer, 4096).defined()) << "small ones are LibTorch's";
  EXPECT_FALSE(resized_aligned(empty_aligned({4096}, at::kByte), 2 * kMiB).defined());
  EXPECT_EQ(buffer.storage().nbytes(), static_cast<size_t>(2 * kMiB)) << "as before";
}

/// New memory is zeros, so written values show whose pages a buffer has.
TEST(HostBuffers, ReusesPagesOfTheNearestIdleBuffer) {
  constexpr int64_t kMiB = 1 << 20;
  HostBuffers buffers(40 * kMiB);
  at::Tensor large = buffers.take(20 * kMiB), medium = buffers.take(10 * kMiB), block = buffers.take(4096);
  large.fill_(1), medium.fill_(2), block.fill_(3);
  for (at::Tensor* buffer : {&large, &medium, &block}) buffers.give_back(std::exchange(*buffer, {}));
  const at::Tensor first = buffers.take(11 * kMiB), second = buffers.take(11 * kMiB), third = buffers.take(11 * kMiB);
  EXPECT_EQ(first[0].item<int64_t>(), 2);
  EXPECT_EQ(second[0].item<int64_t>(), 1);
  EXPECT_EQ(third[0].item<int64_t>(), 0) << "only a block is idle, which reaches nowhere";
  EXPECT_EQ(buffers.in_use(), 33 * kMiB);
  EXPECT_EQ(buffers.held(), 33 * kMiB + 4096);
  EXPECT_EQ(buffers.take(4096)[0].item<int64_t>(), 3);
  EXPECT_LE(buffers.peak(), 40 * kMiB);
}

}  // namespace
}  // namespace colossal::memory::host_buffers_test
