// The trap device itself: it gives the CPU's results, enforces a GPU's rules, and ends the process if the host accesses
// its memory.
#include "support/trap_device.h"

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "support/trap_memory.h"

namespace colossal::test::trap_device_test {
namespace {

using ::testing::HasSubstr;
using ::testing::KilledBySignal;

class TrapDevice : public testing::Test {
 protected:
  static void SetUpTestSuite() { trap_device(); }
  at::Tensor random(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
    return at::randn(sizes, generator_, at::kDouble).to(type);
  }
  const at::Device device_ = trap_device();
  const at::Generator generator_ = at::detail::createCPUGenerator(7);
};

/// Compares tensors bitwise. NaN equals NaN.
::testing::AssertionResult same(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor host = peek(got);
  if (got.scalar_type() != want.scalar_type() || got.sizes() != want.sizes())
    return ::testing::AssertionFailure() << got.toString() << got.sizes() << " for " << want.toString() << want.sizes();
  if (host.is_floating_point() ? at::allclose(host, want, 0, 0, true) : at::equal(host, want))
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "got " << host << "\nfor " << want;
}

template <class Compute>
void expect_same(const std::string& what, const Compute& compute, const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> there;
  for (const at::Tensor& t : inputs) there.push_back(t.to(trap_device()));
  const at::Tensor got = compute(there), want = compute(inputs);
  EXPECT_EQ(got.device(), trap_device()) << what;
  EXPECT_TRUE(same(got, want)) << what;
}

TEST_F(TrapDevice, HasAName) {
  EXPECT_EQ(at::Device("trap:3"), trap_device(3));
  EXPECT_EQ(at::zeros({2}, device_).toString(), "trapFloatType");
  EXPECT_THROW(trap_device(kTrapDevices), std::exception);
}

using TrapDeviceDeath = TrapDevice;

TEST_F(TrapDeviceDeath, EndsAHostThatReads) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const at::Tensor x = at::ones({4}, device_);
  const auto* first = static_cast<const volatile float*>(x.const_data_ptr());
  EXPECT_EXIT([[maybe_unused]] const float value = *first, KilledBySignal(SIGSEGV), "the host touched memory");
}

TEST_F(TrapDeviceDeath, EndsAHostThatWrites) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const at::Tensor x = at::ones({4}, device_).narrow(0, 1, 2);
  auto* first = static_cast<volatile float*>(x.mutable_data_ptr());
  EXPECT_EXIT(*first = 1, KilledBySignal(SIGSEGV), "the host touched memory");
}

TEST_F(TrapDeviceDeath, KeepsOtherFaults) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(*static_cast<volatile int*>(nullptr) = 1, KilledBySignal(SIGSEGV), "");
}

TEST_F(TrapDeviceDeath, EndsKernelsThatWritePastATensor) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  test::TrapMemory& memory = test::TrapMemory::of_process();
  void* there = memory.allocate(10);
  static_cast<char*>(memory.accessible(there))[10] = 0;
  EXPECT_DEATH(memory.free(there), "wrote behind a tensor");
}

TEST_F(TrapDevice, RefusesHostMemoryInKernels) {
  float number = 1;
  const at::Tensor host = at::from_blob(&number, {1});
  at::Tensor x = at::ones({1}, device_);
  x.storage().set_data_ptr_noswap({&number, device_});
  EXPECT_THAT([&] { x.add_(1); }, ::testing::ThrowsMessage<std::exception>(HasSubstr("memory of the host")));
  EXPECT_EQ(number, 1);
}

TEST_F(TrapDevice, EqualsOperatorsOfTheCpu) {
  const at::Tensor a = random({4, 6}), b = random({4, 6}), row = random({6}), square = random({6, 6});
  const at::Tensor ids = at::tensor({2, 0, 3, 2}, at::kLong);
  using In = const std::vector<at::Tensor>&;
  expect_same("add", [](In x) { return x[0] + 2 * x[1]; }, {a, row});
  expect_same("numbers", [](In x) { return (x[0] * 3.5 - 1) / x[0].abs().add(1).rsqrt(); }, {a});
  expect_same("mm", [](In x) { return x[0].mm(x[1]).matmul(x[1]); }, {a, square});
  expect_same("addmm", [](In x) { return at::addmm(x[0], x[1], x[2]); }, {row, a, square});
  expect_same("sums", [](In x) { return x[0].sum(1) + x[0].mean() + x[0].norm() + x[0].amax(1); }, {a});
  expect_same("softmax", [](In x) { return x[0].softmax(-1).log().logsumexp(0); }, {a});
  expect_same("index_select", [](In x) { return x[0].index_select(0, x[1]); }, {a, ids});
  expect_same("index", [](In x) { return x[0].index({x[1]}); }, {a, ids});
  expect_same("gather", [](In x) { return x[0].gather(0, x[1].view({1, 4}).repeat({1, 1})); }, {a, ids});
  expect_same("index_add", [](In x) { return at::zeros_like(x[0]).index_add_(0, x[1], x[0]); }, {a, ids});
  expect_same("index_put", [](In x) { return x[0].clone().index_put_({x[1]}, x[2].sum(0), true); }, {a, ids, b});
  expect_same("where", [](In x) { return at::where(x[0] > 0, x[0], x[1]).masked_fill(x[0] < -1, 7); }, {a, b});
  expect_same("sort", [](In x) { return std::get<1>(x[0].sort(1)); }, {a});
  expect_same("topk", [](In x) { return std::get<0>(x[0].topk(2)); }, {a});
  expect_same("cat", [](In x) { return at::cat({x[0], x[1], x[0]}, 1); }, {a, b});
  expect_same("stack", [](In x) { return at::stack({x[0], x[1]}, 1); }, {a, b});
  expect_same("split", [](In x) { return x[0].split(4, 1)[1] + x[0].chunk(3, 1)[0]; }, {a});
  expect_same("casts", [](In x) { return x[0].to(at::kBFloat16).to(at::kDouble) + x[0].to(at::kHalf); }, {a});
  expect_same("embedding", [](In x) { return at::embedding(x[0], x[1]); }, {a, ids});
  expect_same("layer_norm", [](In x) { return at::layer_norm(x[0], {6}, x[1], x[1]); }, {a, row});
  expect_same("gelu", [](In x) { return at::gelu(x[0], "tanh") + at::silu(x[0]); }, {a});
  expect_same("einsum", [](In x) { return at::einsum("ij,kj->ik", {x[0], x[1]}); }, {a, b});
  expect_same("svd", [](In x) { return std::get<1>(at::linalg_svd(x[0])); }, {a});
  expect_same("complex", [](In x) { return at::view_as_real(at::fft_rfft(x[0])); }, {a});
  expect_same("cumsum", [](In x) { return x[0].cumsum(1).flip(0).roll(1, 1).tril(); }, {a});
  expect_same("numpy's T", [](In x) { return x[0].t().contiguous().reshape({3, 8}).permute({1, 0}); }, {a});
}

TEST_F(TrapDevice, MakesTensorsByFactories) {
  const auto options = at::TensorOptions(device_);
  EXPECT_TRUE(same(at::arange(5, options.dtype(at::kLong)), at::arange(5, at::kLong)));
  EXPECT_TRUE(same(at::full({2}, 3.5, options), at::full({2}, 3.5)));
  EXPECT_TRUE(same(at::eye(3, options), at::eye(3)));
  EXPECT_TRUE(same(at::linspace(0, 1, 5, options), at::linspace(0, 1, 5)));
  EXPECT_TRUE(same(at::tensor({1.0, 2.0}, options.dtype(at::kDouble)), at::tensor({1.0, 2.0})));
  EXPECT_TRUE(same(at::zeros({2, 2}, options).new_ones({3}), at::ones({3})));
  EXPECT_TRUE(same(at::scalar_tensor(2, options), at::scalar_tensor(2)));
  EXPECT_EQ(at::empty({0}, options).device(), device_);
  EXPECT_TRUE(peek(at::empty({100}, options)).isnan().all().item<bool>()) << "what nobody wrote is no number";
}

TEST_F(TrapDevice, SharesMemoryOfViews) {
  const at::Tensor host = random({4, 6});
  const at::Tensor x = host.to(device_);
  const std::vector<at::Tensor> views{x.t(),          x.narrow(0, 1, 2), x.select(1, 3),   x.view({2, 12}),
                                      x.unsqueeze(1), x.view(at::kInt),  x.expand({4, 6}), x.unfold(1, 2, 2),
                                      x.diagonal(),   x.split(2)[1],     x.unbind(0)[2],   x.as_strided({2}, {5}, 3),
                                      x.detach(),     x.reshape({6, 4})};
  for (const at::Tensor& view : views) EXPECT_TRUE(view.is_alias_of(x)) << view.sizes();
  x.narrow(0, 1, 2).narrow(1, 2, 3).add_(1).t().mul_(2);
  host.narrow(0, 1, 2).narrow(1, 2, 3).add_(1).t().mul_(2);
  EXPECT_TRUE(same(x, host));
  EXPECT_TRUE(same(views[1], host.narrow(0, 1, 2)));
  EXPECT_FALSE(x.t().contiguous().is_alias_of(x));
}

TEST_F(TrapDevice, WritesToOutputTensors) {
  at::Tensor x = random({4}).to(device_), wide = at::zeros({2, 4}, device_), grown = at::empty({0}, device_);
  const void* memory = wide.const_data_ptr();
  at::Tensor row = wide[1];
  at::add_out(row, x, x);
  EXPECT_TRUE(same(wide[1], peek(x) * 2));
  EXPECT_EQ(wide.const_data_ptr(), memory);
  EXPECT_TRUE(x.add_(1).is_same(x));
  at::add_out(grown, x, x);  // the result has another size, so `grown` gets new memory
  EXPECT_TRUE(same(grown, peek(x) * 2));
  const at::Tensor view = grown.narrow(0, 0, 2);
  grown.resize_({3, 4});
  EXPECT_EQ(grown.sizes(), at::IntArrayRef({3, 4}));
  EXPECT_TRUE(same(grown[0], peek(x) * 2)) << "what was there stays";
  EXPECT_TRUE(view.is_alias_of(grown));
  grown.set_(x.storage(), 1, {2}, {1});
  EXPECT_TRUE(same(grown, peek(x).narrow(0, 1, 2)));
  EXPECT_TRUE(grown.is_alias_of(x));
  at::Tensor values = at::empty({0}, device_), order = at::empty({0}, at::TensorOptions(device_).dtype(at::kLong));
  at::sort_out(values, order, x);
  EXPECT_TRUE(same(values, std::get<0>(peek(x).sort())));
}

TEST_F(TrapDevice, AcceptsListsOfTensors) {
  std::vector<at::Tensor> a{random({3}), random({2, 2})}, there;
  for (const at::Tensor& t : a) there.push_back(t.to(device_));
  at::_foreach_mul_(there, 2.5);
  at::_foreach_add_(there, there, 0.5);
  at::_foreach_mul_(a, 2.5);
  at::_foreach_add_(a, a, 0.5);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same(there[i], a[i]));
  EXPECT_TRUE(same(at::_foreach_norm(there)[1], at::_foreach_norm(a)[1]));
}

TEST_F(TrapDevice, RunsBackwardOnAThreadOfTheDevice) {
  struct WhereAmI : torch::autograd::Function<WhereAmI> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   torch::autograd::variable_list gradients) {
      context->saved_data.clear();
      seen() = std::this_thread::get_id();
      EXPECT_EQ(gradients[0].device(), trap_device());
      return gradients;
    }
    static std::atomic<std::thread::id>& seen() {
      static std::atomic<std::thread::id> id;
      return id;
    }
  };
  const at::Tensor host = random({4, 6}).requires_grad_(), weights = random({6, 3}).requires_grad_();
  const at::Tensor x = host.detach().to(device_).requires_grad_(), w = weights.detach().to(device_).requires_grad_();
  const auto loss = [](const at::Tensor& x, const at::Tensor& w) {
    return x.mm(w)
        .tanh()
        .narrow(1, 1, 2)
        .softmax(-1)
        .index_select(0, at::tensor({1, 1}, x.options().dtype(at::kLong)))
        .square()
        .sum();
  };
  loss(host, weights).backward();
  loss(WhereAmI::apply(x), w).backward();
  EXPECT_TRUE(same(x.grad(), host.grad()));
  EXPECT_TRUE(same(w.grad(), weights.grad()));
  EXPECT_NE(WhereAmI::seen().load(), std::this_thread::get_id());
}

TEST_F(TrapDevice, RefusesOperandsOnTwoDevices) {
  const at::Tensor x = at::ones({2, 2}, device_), host = at::ones({2, 2});
  const auto refuses = ::testing::ThrowsMessage<std::exception>(HasSubstr("same device"));
  EXPECT_THAT([&] { x + host; }, refuses);
  EXPECT_THAT([&] { x.mm(host); }, refuses);
  EXPECT_THAT([&] { host.mm(x); }, refuses);
  EXPECT_THAT([&] { at::cat({x, host}); }, refuses);
  EXPECT_THAT([&] { x.index_select(0, at::tensor({0}, at::kLong)); }, refuses);
  EXPECT_THAT([&] { x + at::ones({2, 2}, trap_device(1)); }, refuses);
  at::Tensor number = at::scalar_tensor(2);
  EXPECT_TRUE(same(x + number, at::full({2, 2}, 3.f))) << "numbers of the host go along";
  EXPECT_TRUE(same(number * x, at::full({2, 2}, 2.f)));
  EXPECT_THAT([&] { number.add_(x.sum()); }, refuses) << "but nothing is written there";
}

TEST_F(TrapDevice, HasItsOwnRandomNumbers) {
  at::Generator generator = at::globalContext().defaultGenerator(device_);
  generator.set_current_seed(5);
  const at::Tensor first = at::randn({4}, device_);
  at::Generator(at::globalContext().defaultGenerator(at::kCPU)).set_current_seed(9);
  at::randn({4});
  generator.set_current_seed(5);
  EXPECT_TRUE(same(at::randn({4}, device_), peek(first)));
  EXPECT_FALSE(same(at::randn({4}, device_), peek(first)));
  EXPECT_TRUE(same(at::randn({4}, at::detail::createCPUGenerator(5)).to(device_), peek(first)));
  EXPECT_THAT([&] { at::zeros({4}, device_).normal_(0, 1, at::detail::createCPUGenerator(5)); },
              ::testing::ThrowsMessage<std::exception>(HasSubstr("'trap' device type for generator")));
  EXPECT_EQ(at::randperm(6, at::TensorOptions(device_).dtype(at::kLong)).device(), device_);
}

TEST_F(TrapDevice, CountsWaitsOfTheHost) {
  const at::Tensor host = at::ones({3}), pinned = host.pin_memory();
  EXPECT_TRUE(pinned.is_pinned());
  EXPECT_FALSE(host.is_pinned());
  const at::Tensor x = host.to(device_);
  const auto waits_of = [&](const auto& fn) {
    const TrapWaits waits(device_);
    fn();
    return waits.counts();
  };
  EXPECT_EQ(waits_of([&] { (x + x).sum().mul_(2).to(at::kDouble).clone(); }).waits(), 0);
  EXPECT_EQ(waits_of([&] { at::zeros({3}, device_).copy_(x).fill_(1); }).waits(), 0);
  EXPECT_EQ(waits_of([&] { x.sum().item(); }).scalar_reads, 1);
  EXPECT_EQ(waits_of([&] { at::equal(x, x); }).sizes_read, 1);
  EXPECT_EQ(waits_of([&] { x.nonzero(); }).sizes_read, 1);
  EXPECT_EQ(waits_of([&] { x.index({x > 0}); }).sizes_read, 1);
  EXPECT_EQ(waits_of([&] { x.masked_fill(x > 0, 2); }).waits(), 0);
  const TrapCounts down = waits_of([&] { x.to(at::kCPU, at::kDouble); });
  EXPECT_EQ(down.copies_to_host, 1);
  EXPECT_EQ(down.bytes_to_host, 12);
  const TrapCounts up = waits_of([&] { host.to(device_, /*non_blocking=*/true); });
  EXPECT_EQ(up.copies_to_device, 1) << "memory that may be swapped out is copied before the call returns";
  EXPECT_EQ(up.bytes_to_device, 12);
  const TrapCounts asynchronous = waits_of([&] { pinned.to(device_, /*non_blocking=*/true); });
  EXPECT_EQ(asynchronous.waits(), 0);
  EXPECT_EQ(asynchronous.copies_not_awaited, 1);
  EXPECT_EQ(waits_of([&] { pinned.to(device_); }).waits(), 1);
  EXPECT_EQ(TrapWaits(trap_device(1)).counts().waits(), 0);
}

TEST_F(TrapDevice, AdvancesItsClockByOperators) {
  const c10::Stream stream(c10::Stream::DEFAULT, device_);
  c10::Event before(device_.type(), c10::EventFlag::BACKEND_DEFAULT), after(device_.type(), before.flag());
  const at::Tensor x = at::ones({3}, device_);
  before.record(stream);
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  x.mul_(2).add_(1);
  at::ones({3}, trap_device(1)).mul_(2);
  after.record(stream);
  EXPECT_EQ(before.elapsedTime(after), 2 * kTrapMilliseconds);
}

TEST_F(TrapDevice, CountsBytesLikeAllocatorsOfGpus) {
  c10::DeviceAllocator& allocator = *c10::getDeviceAllocator(device_.type());
  const auto bytes = [&] { return allocator.getDeviceStats(0).allocated_bytes[0]; };
  allocator.resetPeakStats(0);
  const int64_t before = bytes().current, other = allocator.getDeviceStats(1).allocated_bytes[0].allocated;
  EXPECT_EQ(bytes().peak, before);
  at::Tensor x = at::empty({100}, device_);
  EXPECT_EQ(bytes().current, before + 448) << "seven lines of 64";
  x = at::Tensor();
  x = at::ones({2}, device_);
  x.resize_({1000});
  EXPECT_EQ(bytes().current, before + 4032) << "what a kernel has made larger";
  x = at::Tensor();
  EXPECT_EQ(bytes().current, before);
  EXPECT_EQ(bytes().peak, before + 4032 + 64) << "both while one becomes the other";
  EXPECT_EQ(allocator.getDeviceStats(1).allocated_bytes[0].allocated, other);
}

TEST_F(TrapDevice, FreesMemory) {
  const void* first = at::empty({1 << 20}, device_).const_data_ptr();
  const void* second = at::empty({1 << 20}, device_).const_data_ptr();
  EXPECT_EQ(first, second);
}

}  // namespace
}  // namespace colossal::test::trap_device_test
