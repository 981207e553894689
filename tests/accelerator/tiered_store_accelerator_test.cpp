// Tensors of an accelerator that are stored in pinned memory of the host and, beyond it, on a disk. Copies run without
// waits, and values stay right when buffers are reused.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>

#include "colossal/memory/stream_aside.h"
#include "colossal/memory/tiers/aligned_tensor.h"
#include "colossal/memory/tiers/inputs_at.h"
#include "colossal/memory/tiers/loaded_store.h"
#include "colossal/memory/tiers/tiered_store.h"
#include "support/accelerator.h"
#include "support/temporary_folder.h"

namespace colossal::memory::tiered_store_accelerator_test {
namespace {

constexpr int64_t kNumel = 1024, kBytes = 4 * kNumel;  // size of a tensor, which is one block of the disk

class TieredStoreOnAccelerator : public test::AcceleratorTest {
 protected:
  std::shared_ptr<TieredStore> make_store(int64_t tensors_in_host, bool has_disk = true) {
    return std::make_shared<TieredStore>(
        TieredStore::Options{.host_bytes = tensors_in_host * kBytes,
                             .disk = has_disk ? std::make_shared<DiskSpace>(folder_.path()) : nullptr,
                             .device = test::accelerator()});
  }
  static at::Tensor there(double value) { return at::full({kNumel}, value, at::device(test::accelerator())); }
  static void expect_all(const at::Tensor& x, double value, const std::string& what) {
    EXPECT_TRUE(at::equal(test::peek(x), at::full({kNumel}, value))) << what << ": " << test::peek(x)[0].item<double>();
  }

 private:
  test::TemporaryFolder folder_;
};

TEST_F(TieredStoreOnAccelerator, BorrowsPinnedMemoryThatADiskReads) {
  const auto tiers = make_store(2);
  const auto offloaded = tiers->offload(there(3));
  const at::Tensor borrowed = offloaded->borrow();
  EXPECT_TRUE(borrowed.is_cpu() && borrowed.is_pinned() && is_aligned(borrowed));
  expect_all(borrowed, 3, "of the device");
  borrowed.fill_(4);
  offloaded->return_borrowed(borrowed, true);
  at::Tensor to = at::empty_like(borrowed, at::device(test::accelerator()));
  offloaded->copy_to(to);
  expect_all(to, 4, "of the host");
  EXPECT_TRUE(empty_aligned({1 << 20}, at::TensorOptions().pinned_memory(true)).is_pinned()) << "larger ones, too";
  EXPECT_FALSE(TieredStore({}).offload(at::ones({3}))->borrow().is_pinned()) << "of ranks that compute on the CPU";
}

TEST_F(TieredStoreOnAccelerator, CopiesWithoutWaits) {
  const auto tiers = make_store(8, false);
  std::vector<at::Tensor> to;
  const at::Tensor first = there(1), second = there(2), third = there(3);
  for (int i = 0; i < 3; ++i) to.push_back(at::empty_like(first));
  const auto offloaded = tiers->offload(first), other = tiers->offload(second);
  {
    test::AcceleratorWaits waits;
    offloaded->copy_to(to[0]);  // runs after the copy to the host
    offloaded->replace(third);  // runs after that copy
    offloaded->copy_to(to[1]);
    other->copy_to(to[2]);
    const test::TrapCounts counts = waits.counts();
    EXPECT_EQ(counts.waits(), 0) << counts;
    if (test::AcceleratorWaits::are_counted()) EXPECT_EQ(counts.copies_not_awaited, 4) << counts;
  }
  expect_all(to[0], 1, "before it is replaced");
  expect_all(to[1], 3, "after it is replaced");
  expect_all(to[2], 2, "the other");
  test::AcceleratorWaits waits;
  expect_all(offloaded->borrow(), 3, "on the host");
  if (test::AcceleratorWaits::are_counted()) EXPECT_EQ(waits.counts().copies_to_host, 0) << waits.counts();
}

TEST_F(TieredStoreOnAccelerator, KeepsSourcesOfAtMostFourCopies) {
  const auto tiers = make_store(16, false);
  std::vector<std::unique_ptr<OffloadedTensor>> offloaded;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> sources;
  for (int i = 0; i < 8; ++i) {
    const at::Tensor source = there(i);
    sources.push_back(source.storage().getWeakStorageImpl());
    offloaded.push_back(tiers->offload(source));
    int64_t alive = 0;
    for (const auto& one : sources) alive += !one.expired();
    EXPECT_LE(alive, 5) << "four, and the one that this test has";
    if (test::AcceleratorWaits::are_counted()) EXPECT_GE(alive, std::min(i + 1, 4));
  }
  for (int i = 0; i < 8; ++i) expect_all(offloaded[static_cast<size_t>(i)]->borrow(), i, "offloaded");
  for (const auto& one : sources) EXPECT_TRUE(one.expired());
}

// The calls are random. Buffers pass from one tensor to the next while copies run, and sources are freed and their
// memory is reused.
TEST_F(TieredStoreOnAccelerator, KeepsValuesUnderRandomUses) {
  for (const bool has_disk : {true, false}) {
    const auto tiers = make_store(has_disk ? 4 : 10, has_disk);
    std::mt19937 random(5);
    std::vector<std::unique_ptr<OffloadedTensor>> offloaded(8);
    std::vector<double> want(offloaded.size());
    std::vector<bool> discarded(offloaded.size(), true);
    double next = 0;
    for (int use = 0; use < 600; ++use) {
      if (use % 40 == 0) {
        if (use > 0) tiers->end_step();
        tiers->begin_step();
        random.seed(use < 400 ? 1 : 2);  // the first steps are equal, the later ones are others
      }
      const size_t i = random() % offloaded.size();
      const std::string what = "use " + std::to_string(use);
      if (!offloaded[i] || (random() % 4 == 0 && !discarded[i])) {
        offloaded[i] = tiers->offload(there(want[i] = ++next));
        discarded[i] = false;
      } else if (discarded[i] || random() % 4 == 0) {
        offloaded[i]->replace(random() % 2 == 0 ? there(++next) : at::full({kNumel}, ++next));
        want[i] = next;
        discarded[i] = false;
      } else if (random() % 3 == 0) {
        const at::Tensor borrowed = offloaded[i]->borrow();
        expect_all(borrowed, want[i], what);
        const bool writes = random() % 2 == 0;
        if (writes) borrowed.fill_(want[i] = ++next);
        offloaded[i]->return_borrowed(borrowed, writes);
      } else if (random() % 6 == 0) {
        offloaded[i]->discard();
        discarded[i] = true;
      } else {
        at::Tensor to = at::empty({kNumel}, at::device(test::accelerator()));
        offloaded[i]->copy_to(to);
        if (random() % 2 == 0) offloaded[i].reset();  // frees the buffer before the device has read it
        expect_all(to, want[i], what);
      }
      EXPECT_LE(tiers->counts().peak_host_bytes, (has_disk ? 4 : 10) * kBytes);
    }
    if (has_disk) EXPECT_GT(tiers->counts().evictions, 0);
  }
}

TEST_F(TieredStoreOnAccelerator, KeepsInputsThatAreOverwritten) {
  InputsAt inputs(make_store(2));
  std::vector<std::unique_ptr<nn::OffloadedInputs>> offloaded;
  const at::Tensor x = there(0);
  for (int i = 0; i < 6; ++i) {
    x.fill_(i);
    offloaded.push_back(inputs.offload({x}));
  }
  x.fill_(-1);
  for (int i = 5; i >= 0; --i) {
    const at::Tensor taken = offloaded[static_cast<size_t>(i)]->take().front();
    EXPECT_EQ(taken.device(), test::accelerator());
    expect_all(taken, i, "input");
  }
}

// Weights are filled on the host and copied from there, both resident and streamed ones. The last copies still run when
// their tensors are destroyed.
TEST_F(TieredStoreOnAccelerator, CopiesLoadedWeightsFromPinnedMemory) {
  constexpr int64_t kTensors = 8, kStay = 3;
  const auto tiers = make_store(3);
  LoadedStore loaded(tiers, {.all = kTensors * kBytes, .stays = kStay * kBytes, .largest = kBytes});
  EXPECT_TRUE(loaded.borrow_device(test::accelerator()).is_cpu());
  std::vector<std::unique_ptr<OffloadedTensor>> offloaded;
  for (int64_t i = 0; i < kTensors; ++i) {
    // The tensor has sizes, but no memory for its elements.
    offloaded.push_back(loaded.offload(at::empty({1}, at::device(test::accelerator())).expand({kNumel})));
    if (i % 2 == 0) {
      const at::Tensor borrowed = offloaded.back()->borrow();
      EXPECT_TRUE(borrowed.is_cpu());
      offloaded.back()->return_borrowed(borrowed.fill_(static_cast<double>(i)), true);
    } else {
      offloaded.back()->replace(there(static_cast<double>(i)));
    }
  }
  EXPECT_EQ(loaded.stayed_bytes(), kStay * kBytes);
  int64_t pinned = 0;
  for (const auto& one : offloaded) {
    const at::Tensor borrowed = one->borrow();
    pinned += borrowed.is_pinned() && is_aligned(borrowed);
    one->return_borrowed(borrowed, false);
  }
  EXPECT_EQ(pinned, kTensors);
  std::vector<at::Tensor> to;
  StreamAside aside(test::accelerator());
  for (int pass = 0; pass < 3; ++pass) {
    tiers->begin_step();
    for (const auto& one : offloaded) {
      to.push_back(at::empty({kNumel}, at::device(test::accelerator())));
      aside.run([&] { one->copy_to(to.back()); });
    }
    tiers->end_step();
  }
  offloaded.clear();
  aside.join();
  for (size_t i = 0; i < to.size(); ++i)
    expect_all(to[i], static_cast<double>(i % kTensors), "copy " + std::to_string(i));
}

// A tensor of the device is used on the host, as parameters of ZeRO 1 are if their optimizer states are on the host.
TEST_F(TieredStoreOnAccelerator, BorrowsDeviceTensorsAsCopies) {
  const at::Tensor values = there(1), view = values.narrow(0, 0, 10);
  const std::shared_ptr<OffloadedTensor> offloaded = copied_to(at::kCPU, InPlace().offload(values));
  const at::Tensor borrowed = offloaded->borrow();
  expect_all(borrowed, 1, "borrowed");
  borrowed.fill_(2);
  offloaded->return_borrowed(borrowed, true);
  expect_all(values, 2, "written");
  offloaded->return_borrowed(offloaded->borrow().fill_(5), false);
  expect_all(values, 2, "not written");
  offloaded->replace(at::full({kNumel}, 3.0));
  EXPECT_TRUE(at::equal(test::peek(view), at::full({10}, 3.0))) << "views see it";
}

}  // namespace
}  // namespace colossal::memory::tiered_store_accelerator_test
