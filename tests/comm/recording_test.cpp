// A rank without peers records the same calls as a rank among its peers.
#include "colossal/comm/decorators/recording.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/comm/collectives.h"
#include "colossal/comm/compressed_collectives.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/comm/simulated_world.h"
#include "colossal/tensor/flops.h"
#include "colossal/tensor/moved_bytes.h"
#include "colossal/tensor/transfers.h"
#include "support/thrown_message.h"

namespace colossal::test::recording_test {
namespace {

using comm::Collective;
using comm::Mesh;
using comm::Phase;
using comm::PhaseScope;
using comm::RecordedCall;
using comm::RecordingWorld;
using comm::Reduce;
using comm::World;
using testing::ElementsAre;
using testing::HasSubstr;

std::string text(const RecordedCall& call) {
  return concat(call.group, " ", to_string(call.collective), " ", to_string(call.op), " ", call.peer, " ", call.dtype,
                " ", at::IntArrayRef(call.in_sizes), " -> ", at::IntArrayRef(call.out_sizes), " sends ",
                call.sent.bytes, " bytes in ", to_string(call.phase));
}

std::vector<std::string> texts(const std::vector<RecordedCall>& calls) {
  std::vector<std::string> result;
  for (const auto& call : calls) result.push_back(text(call));
  return result;
}

/// Makes every collective, alone and as part of composed ones, on a mesh of two axes.
void call_everything(World& world, const at::TensorOptions& options) {
  Mesh mesh(world, {{"data", 2}, {"tensor", 2}});
  comm::Group &tensor = mesh.group("tensor"), &all = mesh.all();
  {
    const PhaseScope phase(world.traffic(), Phase::Forward);
    at::Tensor x = at::ones({4, 6}, options), parts = at::ones({2, 4, 6}, options);
    all.all_reduce(x, Reduce::Max).wait();
    tensor.all_gather(parts, x).wait();
    tensor.reduce_scatter(x, parts, Reduce::Sum).wait();
    tensor.broadcast(x, 1).wait();
    tensor.reduce(x, 0, Reduce::Min).wait();
    tensor.all_to_all(x, x.clone(), {}, {}).wait();
    // this rank keeps one row and sends three, and the other rank does the opposite
    const bool first = tensor.rank() == 0;
    tensor
        .all_to_all(x, x.clone(), first ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{3, 1},
                    first ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{3, 1})
        .wait();
    comm::Group& ahead = mesh.one_way("data", 0, 1);
    if (ahead.rank() == 0) ahead.send(x, 1).wait();
    if (ahead.rank() == 1) ahead.recv(x, 0).wait();
    all.barrier().wait();
  }
  const PhaseScope phase(world.traffic(), Phase::Backward);
  const at::Tensor x = at::ones({4, 6}, options).requires_grad_();
  const at::Tensor y = comm::all_gather(comm::reduce_from(x, all), 1, tensor);
  comm::reduce_scatter(y, 0, mesh.neighbours("tensor", 2)).sum().backward();
  if (options.device() == at::kMeta) return;  // fp8 and similar formats read values
  at::Tensor sum = at::ones({100});
  comm::compressed_all_reduce(sum, tensor, {});
}

TEST(Recording, EqualsARecordingAmongPeers) {
  std::vector<std::vector<RecordedCall>> real(4);
  std::vector<double> bytes(4);
  comm::run_ranks(4, [&](World& world) {
    RecordingWorld recording(world);
    call_everything(recording, at::kCPU);
    real[world.rank()] = recording.calls();
    bytes[world.rank()] = world.traffic().total().bytes;
  });
  for (int rank = 0; rank < 4; ++rank) {
    const auto simulated = comm::make_simulated_world(rank, 4);
    RecordingWorld alone(*simulated);
    call_everything(alone, at::kCPU);
    EXPECT_EQ(texts(alone.calls()), texts(real[rank])) << "rank " << rank;
    EXPECT_EQ(alone.calls(), real[rank]) << "rank " << rank;
    EXPECT_EQ(simulated->traffic().total().bytes, bytes[rank]) << "rank " << rank;
  }
}

TEST(Recording, EqualsForMetaAndRealTensors) {
  const auto call = [](World& world, const at::TensorOptions& options) {
    RecordingWorld recording(world);
    call_everything(recording, options);
    auto calls = recording.calls();
    std::erase_if(calls, [](const RecordedCall& each) { return each.dtype == at::kByte && !each.in_sizes.empty(); });
    return calls;
  };
  const auto one = comm::make_simulated_world(3, 4), other = comm::make_simulated_world(3, 4);
  EXPECT_EQ(call(*one, at::kMeta), call(*other, at::kCPU));
}

TEST(Recording, RecordsAllPropertiesOfACall) {
  const auto simulated = comm::make_simulated_world(42, 64);
  RecordingWorld world(*simulated);
  Mesh mesh(world, {{"data", 4}, {"pipeline", 2}, {"tensor", 8}});
  const PhaseScope phase(world.traffic(), Phase::Optimizer);
  at::Tensor all = at::empty({8 * 1000, 1000}, at::dtype(at::kBFloat16).device(at::kMeta));
  mesh.group("tensor").all_gather(all, at::empty({1000, 1000}, all.options())).wait();
  const RecordedCall want{.group = "tensor",
                          .group_index = 0,
                          .collective = Collective::AllGather,
                          .dtype = at::kBFloat16,
                          .out_sizes = {8000, 1000},
                          .in_sizes = {1000, 1000},
                          .sent = {7e6, 14e6},
                          .phase = Phase::Optimizer};
  EXPECT_THAT(world.calls(), ElementsAre(want)) << text(world.calls().at(0));
  EXPECT_THAT(world.events().groups, ElementsAre(StepEvents::Group{"tensor", {40, 41, 42, 43, 44, 45, 46, 47}}));
  EXPECT_EQ(world.traffic().total("tensor", "all_gather").bytes, 14e6);
  world.clear();
  EXPECT_TRUE(world.calls().empty());
}

TEST(Recording, OmitsRefusedCallsAndGroupsOfOneRank) {
  const auto simulated = comm::make_simulated_world(0, 2);
  RecordingWorld world(*simulated);
  Mesh mesh(world, {{"data", 2}});
  at::Tensor x = at::zeros({4}), out = at::zeros({7});
  EXPECT_THAT(thrown_message([&] { mesh.group("data").all_gather(out, x); }), HasSubstr("needs an output of 2 inputs"));
  mesh.group("tensor").all_reduce(x, Reduce::Sum).wait();
  EXPECT_TRUE(world.calls().empty());
}

std::vector<std::string> texts(const StepEvents& events) {
  std::vector<std::string> result;
  for (const StepEvent& event : events.list) {
    const auto dtype = static_cast<at::ScalarType>(event.dtype);
    const char* const phase = to_string(static_cast<Phase>(event.phase));
    if (event.kind == StepEvent::Kind::Call)
      result.push_back(concat(to_string(static_cast<Collective>(event.collective)), " of ",
                              events.groups.at(static_cast<size_t>(event.group)).name, " ", event.peer, " ", dtype,
                              ": ", event.bytes, " bytes in ", phase));
    else if (event.kind == StepEvent::Kind::Wait)
      result.push_back(concat("wait for ", event.call, " in ", phase));
    else if (event.kind == StepEvent::Kind::Elementwise)
      result.push_back(concat("elementwise ", event.read, " to ", event.written, " in ", phase));
    else
      result.push_back(concat(event.kind == StepEvent::Kind::Product ? "product " : "attention ", event.m, " ", event.n,
                              " ", event.k, " ", dtype, ": ", event.operations, " in ", phase));
  }
  return result;
}

TEST(Recording, KeepsTheOrderOfCallsAndOperations) {
  const auto simulated = comm::make_simulated_world(2, 4);
  RecordingWorld world(*simulated);
  Mesh mesh(world, {{"data", 2}, {"tensor", 2}});
  at::Tensor x = at::zeros({4, 6}, at::kDouble);
  tensor::announce_product(9, 9, 9, at::kFloat);  // before the scope
  {
    const RecordingWorld::Operations operations(world);
    const PhaseScope phase(world.traffic(), Phase::Forward);
    tensor::announce_product(2, 3, 4, at::kBFloat16);
    mesh.group("tensor").all_reduce(x, Reduce::Sum).wait();
    tensor::announce_flops(10, {tensor::Operation::Kind::Attention, at::kHalf});
    mesh.group("data").broadcast(x, 1).wait();
    mesh.group("tensor").all_reduce(x, Reduce::Sum).wait();
  }
  tensor::announce_product(9, 9, 9, at::kFloat);
  const StepEvents events = world.events();
  EXPECT_THAT(
      texts(events),
      ElementsAre("product 2 3 4 BFloat16: 48 in forward", "all_reduce of tensor -1 Double: 192 bytes in forward",
                  "wait for 0 in forward", "attention 0 0 0 Half: 10 in forward",
                  "broadcast of data 1 Double: 96 bytes in forward", "wait for 1 in forward",
                  "all_reduce of tensor -1 Double: 192 bytes in forward", "wait for 2 in forward"));
  EXPECT_THAT(events.groups, ElementsAre(StepEvents::Group{"tensor", {2, 3}}, StepEvents::Group{"data", {0, 2}}));
  world.clear();
  EXPECT_EQ(world.events(), StepEvents());
}

TEST(Recording, NotesWhereTheRankWaits) {
  const auto simulated = comm::make_simulated_world(0, 2);
  RecordingWorld world(*simulated);
  Mesh mesh(world, {{"data", 2}});
  at::Tensor x = at::zeros({4}, at::kDouble);
  comm::Work before = mesh.group("data").all_reduce(x, Reduce::Sum);
  world.clear();
  comm::Work first = mesh.group("data").all_reduce(x, Reduce::Sum);
  comm::Work second = mesh.group("data").broadcast(x, 0);
  before.wait();  // is of an older record
  mesh.group("data").send(x, 1).wait();
  second.wait();
  first.wait();
  EXPECT_THAT(
      texts(world.events()),
      ElementsAre("all_reduce of data -1 Double: 32 bytes in setup", "broadcast of data 0 Double: 16 bytes in setup",
                  "send of data 1 Double: 32 bytes in setup", "wait for 1 in setup", "wait for 0 in setup"));
}

TEST(Recording, RecordsElementwiseWorkIfAsked) {
  const auto simulated = comm::make_simulated_world(0, 1);
  RecordingWorld world(*simulated);
  const at::Tensor x = at::ones({8, 16}, at::device(at::kMeta)), y = at::ones({8, 16}, at::device(at::kMeta));
  {
    const RecordingWorld::Operations all(world, RecordingWorld::Detail::All);
    (x.view({16, 8}).t() + at::empty({8, 16}, x.options()).narrow(0, 0, 8)).sum();  // views and memory count nothing
    at::Tensor(y).copy_(x);
    x.to(at::kDouble);
    at::mm(x, y.t());
    const tensor::KernelBytes kernel({x, y}, {x});
    x + y;
  }
  {
    const RecordingWorld::Operations operations(world);
    x + y;
    const tensor::KernelBytes kernel({x}, {x});
  }
  const double bytes = 8 * 16 * 4;
  EXPECT_THAT(texts(world.events()),
              ElementsAre(concat("elementwise ", 2 * bytes, " to ", bytes, " in setup"),    // the sum of two tensors
                          concat("elementwise ", bytes, " to ", 4.0, " in setup"),          // of all elements
                          concat("elementwise ", bytes, " to ", bytes, " in setup"),        // copy_
                          concat("elementwise ", bytes, " to ", 2 * bytes, " in setup"),    // to fp64
                          concat("elementwise ", 2 * bytes, " to ", bytes, " in setup")));  // the kernel
}

// Waits name calls and transfers by one count. A transfer of an older record is not waited for in the new one.
TEST(Recording, CountsCallsAndTransfersTogether) {
  const auto simulated = comm::make_simulated_world(0, 2);
  RecordingWorld world(*simulated);
  Mesh mesh(world, {{"data", 2}});
  at::Tensor x = at::zeros({4}, at::kDouble);
  const RecordingWorld::Operations all(world, RecordingWorld::Detail::All);
  tensor::Transfer before = tensor::announce_disk_read(8);
  world.clear();
  tensor::Transfer read = tensor::announce_disk_read(16), out = tensor::announce_copy_to_host(32);
  comm::Work work = mesh.group("data").all_reduce(x, Reduce::Sum);
  tensor::announce_wait(before);
  tensor::announce_wait(out);
  work.wait();
  tensor::announce_wait(read);
  tensor::announce_copy_to_device(64);
  const std::vector<StepEvent> list = world.events().list;
  using Kind = StepEvent::Kind;
  ASSERT_EQ(list.size(), 8u);
  EXPECT_EQ(list[0].kind, Kind::Disk);
  EXPECT_EQ(list[0].bytes, 16);
  EXPECT_EQ(list[0].read, 16);
  EXPECT_EQ(list[1].kind, Kind::HostCopy);
  EXPECT_EQ(list[1].read, 32);
  EXPECT_EQ(list[2].kind, Kind::Call);
  for (const auto& [index, call] : std::vector<std::pair<size_t, int>>{{3, 1}, {4, 2}, {5, 0}, {7, 3}}) {
    EXPECT_EQ(list[index].kind, Kind::Wait) << index;
    EXPECT_EQ(list[index].call, call) << index;
  }
  EXPECT_EQ(list[6].kind, Kind::HostCopy);
  EXPECT_EQ(list[6].bytes, 64);
  EXPECT_EQ(list[6].written, 64);
}

TEST(Recording, LeavesOutTransfersUnlessAsked) {
  const auto simulated = comm::make_simulated_world(0, 1);
  RecordingWorld world(*simulated);
  const RecordingWorld::Operations operations(world);
  tensor::Transfer read = tensor::announce_disk_read(16);
  tensor::announce_wait(read);
  tensor::announce_copy_to_device(64);
  EXPECT_TRUE(world.events().list.empty());
}

TEST(Recording, NotesPassesAndRecomputation) {
  const auto simulated = comm::make_simulated_world(0, 2);
  RecordingWorld world(*simulated);
  Mesh mesh(world, {{"data", 2}});
  at::Tensor x = at::zeros({4});
  const RecordingWorld::Operations operations(world);
  {
    const comm::PassScope pass(world.traffic(), {.micro_batch = 3, .chunk = 1});
    tensor::announce_product(2, 3, 4, at::kFloat);
    const tensor::RecomputationScope again;
    mesh.group("data").all_reduce(x, Reduce::Sum);
  }
  tensor::announce_product(2, 3, 4, at::kFloat);
  const StepEvents events = world.events();
  ASSERT_EQ(events.list.size(), 3u);
  EXPECT_EQ(events.list[0].micro_batch, 3);
  EXPECT_EQ(events.list[0].chunk, 1);
  EXPECT_FALSE(events.list[0].recomputed);
  EXPECT_EQ(events.list[1].micro_batch, 3);
  EXPECT_TRUE(events.list[1].recomputed);
  EXPECT_EQ(events.list[2].micro_batch, -1);
  EXPECT_FALSE(events.list[2].recomputed);
}

TEST(SimulatedWorld, HoldsOnlyDataOfThisRank) {
  const auto world = comm::make_simulated_world(1, 3);
  auto group = world->make_group("all", {0, 1, 2});
  at::Tensor own = at::arange(1, 4, at::kFloat), all = at::zeros({9}), slice = at::zeros({1});
  group->all_gather(all, own).wait();
  EXPECT_TRUE(all.equal(at::cat({own, own, own})));
  group->all_reduce(own, Reduce::Sum).wait();
  group->reduce_scatter(slice, own, Reduce::Sum).wait();
  EXPECT_EQ(slice.item<float>(), 2);
  group->recv(own, 2).wait();
  EXPECT_TRUE(own.equal(at::zeros({3})));
  group->broadcast(all, 0).wait();
  EXPECT_TRUE(all.equal(at::zeros({9})));
  group->barrier().wait();
  EXPECT_EQ(world->backend(), "idle");
  EXPECT_EQ(world->make_group("two", {1, 2})->rank(), 0);
  EXPECT_THAT(thrown_message([&] { world->make_group("others", {0, 2}); }), HasSubstr("only members may ask for it"));
}

TEST(SimulatedWorld, RefusesAnInvalidRank) {
  EXPECT_THAT(thrown_message([] { comm::make_simulated_world(4, 4); }), HasSubstr("in [0, 4): got 4"));
}

}  // namespace
}  // namespace colossal::test::recording_test
