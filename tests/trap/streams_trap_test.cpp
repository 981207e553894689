// Streams of the trap device other than its first one. Copies on them are made as late as is allowed, so code that does
// not wait for a copy gets wrong values.
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/trap_device.h"

namespace colossal::test::streams_trap_test {
namespace {

class StreamsOnTrap : public testing::Test {
 protected:
  static void SetUpTestSuite() { trap_device(); }
  c10::Stream new_stream() const { return guard_.getStreamFromGlobalPool(device_); }
  c10::Event copied(const at::Tensor& to, const at::Tensor& from, c10::Stream stream) const {
    const c10::StreamGuard aside(stream);
    to.copy_(from, /*non_blocking=*/true);
    c10::Event event(device_.type());
    event.record(stream);
    return event;
  }
  at::Tensor host(double value) const { return at::full({4}, value, at::TensorOptions().pinned_memory(true)); }
  at::Tensor there(double value) const { return at::full({4}, value, at::device(device_)); }
  const at::Device device_ = trap_device();
  const c10::impl::VirtualGuardImpl guard_{device_.type()};
};

TEST_F(StreamsOnTrap, CopiesWhenTheHostWaits) {
  const at::Tensor from = there(2), to = host(1);
  const TrapWaits waits(device_);
  const c10::Event event = copied(to, from, new_stream());
  EXPECT_FALSE(event.query());
  EXPECT_EQ(to[0].item<double>(), 1) << "it has not come";
  event.synchronize();
  EXPECT_TRUE(event.query());
  EXPECT_EQ(to[0].item<double>(), 2);
  event.synchronize();
  EXPECT_EQ(waits.counts().copies_awaited, 1) << "the second time it was there";
  EXPECT_EQ(waits.counts().copies_not_awaited, 1);
}

TEST_F(StreamsOnTrap, CopiesTheValuesOfThatTime) {
  const at::Tensor from = host(1), to = there(0);
  const c10::Event event = copied(to, from, new_stream());
  from.fill_(5);  // too early, because the copy was not made yet
  event.block(guard_.getStream(device_));
  EXPECT_TRUE(at::equal(peek(to), at::full({4}, 5.0F)));
}

TEST_F(StreamsOnTrap, WaitsForOtherStreams) {
  const at::Tensor first = host(1), there_then = there(0), back = host(0);
  const c10::Stream one = new_stream(), two = new_stream();
  copied(there_then, first, one).block(two);
  const c10::Event event = copied(back, there_then, two);
  EXPECT_EQ(back[0].item<double>(), 0);
  event.synchronize();
  EXPECT_EQ(back[0].item<double>(), 1);
}

TEST_F(StreamsOnTrap, RunsWorkInOrder) {
  const at::Tensor from = host(3), to = there(0);
  const c10::Stream stream = new_stream();
  copied(to, from, stream);
  const c10::StreamGuard aside(stream);
  EXPECT_TRUE(at::equal(to.cpu(), at::full({4}, 3.0F))) << "an operator of the same stream comes behind";
}

TEST_F(StreamsOnTrap, RefusesFreedTensors) {
  at::Tensor from = there(2);
  const c10::Event event = copied(host(1), from, new_stream());
  EXPECT_THAT([&] { event.synchronize(); },
              testing::ThrowsMessage<std::exception>(testing::HasSubstr("freed already")));
}

}  // namespace
}  // namespace colossal::test::streams_trap_test
