// Links between the devices of ranks: when they connect, how often, and for which groups. "meta" tensors act as device
// tensors.
#include "colossal/comm/backends/device_group.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "colossal/comm/simulated_world.h"
#include "support/thrown_message.h"

namespace colossal::test::device_group_test {
namespace {

using comm::Membership;
using testing::ElementsAre;
using testing::HasSubstr;

/// Counts its calls, and keeps the reason of an abort.
class Recorder : public comm::IdleGroup {
 public:
  using IdleGroup::IdleGroup;
  comm::Work issue(const comm::Call& call) override {
    ++calls;
    return IdleGroup::issue(call);
  }
  void abort(const std::string& reason) noexcept override { ended_by = reason; }
  int calls = 0;
  std::string ended_by;
};

class DeviceGroups : public testing::Test {
 protected:
  std::shared_ptr<comm::DeviceGroup> group(const std::string& name, std::vector<int> ranks,
                                           const std::string& channel = "") {
    Membership member{name, name + " of this test", std::move(ranks), 0, channel};
    hosts_.push_back(std::make_shared<Recorder>(name, 0, member.size()));
    return std::make_shared<comm::DeviceGroup>(std::move(member), hosts_.back(), links_);
  }
  static void all_reduce(comm::Group& group, at::Device device = at::kMeta) {
    at::Tensor x = at::zeros({3}, device);
    group.all_reduce(x, comm::Reduce::Sum).wait();
  }
  std::vector<std::string> connected_;
  std::vector<std::shared_ptr<Recorder>> made_, hosts_;
  std::function<void(const std::function<void()>&)> meeting_ = [](const auto&) {};
  const std::shared_ptr<comm::DeviceLinks> links_ = std::make_shared<comm::DeviceLinks>(
      [this](const Membership& member, const std::function<void()>& go_on) -> std::shared_ptr<comm::Backend> {
        meeting_(go_on);
        connected_.push_back(member.key);
        made_.push_back(std::make_shared<Recorder>(member.name, member.rank, member.size()));
        return made_.back();
      });
};

TEST_F(DeviceGroups, ConnectsAtTheFirstDeviceTensor) {
  const auto data = group("data", {0, 2, 4});
  all_reduce(*data, at::kCPU);
  data->barrier().wait();
  EXPECT_EQ(hosts_[0]->calls, 2);
  EXPECT_THAT(connected_, ElementsAre());
  all_reduce(*data);
  all_reduce(*data);
  EXPECT_THAT(connected_, ElementsAre("0,2,4:collectives"));
  EXPECT_EQ(made_[0]->name(), "devices of ranks 0,2,4");
  EXPECT_EQ(made_[0]->calls, 2);
  EXPECT_EQ(hosts_[0]->calls, 2);
}

TEST_F(DeviceGroups, SharesALinkAmongGroupsOfTheSameRanks) {
  for (const char* name : {"data", "pipeline+data", "trainer", "data+tensor"}) all_reduce(*group(name, {0, 1, 2, 3}));
  EXPECT_THAT(connected_, ElementsAre("0,1,2,3:collectives"));
  EXPECT_EQ(made_[0]->calls, 4);
  all_reduce(*group("backwards", {0, 3, 2, 1}));
  all_reduce(*group("pair", {0, 1}));
  EXPECT_THAT(connected_, ElementsAre("0,1,2,3:collectives", "0,3,2,1:collectives", "0,1:collectives"));
}

// Calls for which backward waits must not queue after the gradient reduction of the same ranks.
TEST_F(DeviceGroups, GivesAChannelASeparateLink) {
  const auto data = group("data+sequence", {0, 1}), exchange = group("sequence attention", {0, 1}, "attention");
  all_reduce(*data);
  all_reduce(*exchange);
  all_reduce(*group("decoding", {0, 1}, "attention"));
  all_reduce(*data);
  EXPECT_THAT(connected_, ElementsAre("0,1:collectives", "0,1:collectives:attention"));
  EXPECT_EQ(made_[0]->calls, 2);
  EXPECT_EQ(made_[1]->calls, 2);
  EXPECT_EQ(made_[1]->name(), "devices of ranks 0,1, attention");
}

// A receive that is posted early must not delay a reduction of the same two ranks.
TEST_F(DeviceGroups, SeparatesTransfersFromCollectives) {
  const auto pair = group("pipeline", {0, 1}), way = group("pipeline 0>1", {0, 1});
  const at::Tensor x = at::zeros({3}, at::kMeta);
  way->send(x, 1).wait();
  all_reduce(*pair);
  way->send(x, 1).wait();
  EXPECT_THAT(connected_, ElementsAre("0,1:transfers", "0,1:collectives"));
  EXPECT_EQ(made_[0]->calls, 2);
}

TEST_F(DeviceGroups, RefusesInvalidCallsBeforeConnecting) {
  const auto data = group("data", {0, 1});
  const at::Tensor x = at::zeros({3}, at::kMeta);
  EXPECT_THAT(thrown_message([&] { data->send(x, 7); }), HasSubstr("group \"data\""));
  EXPECT_THAT(connected_, ElementsAre());
}

TEST_F(DeviceGroups, AbortsOnlyTheLinksInUse) {
  const auto one = group("data", {0, 1}), other = group("trainer", {0, 1}), unused = group("all", {0, 1});
  all_reduce(*one);
  one->abort("rank 1 died");
  one->abort("later");
  EXPECT_EQ(made_[0]->ended_by, "later") << "links keep the first reason themselves";
  EXPECT_EQ(hosts_[0]->ended_by, "later");
  EXPECT_THAT(thrown_message([&] { all_reduce(*one); }), HasSubstr("[comm] rank 1 died"));
  unused->abort("rank 1 died");
  EXPECT_THAT(thrown_message([&] { all_reduce(*unused); }), HasSubstr("[comm] rank 1 died"));
  EXPECT_NO_THROW(all_reduce(*other));
}

// The watchdog ends a group while it waits for a rank that never arrives.
TEST_F(DeviceGroups, StopsWaitingForRanksWhenTheRunEnds) {
  const auto data = group("data", {0, 1});
  std::thread watchdog;
  meeting_ = [&](const std::function<void()>& go_on) {
    watchdog = std::thread([&] { data->abort("rank 1 never came"); });
    for (;;) go_on();
  };
  EXPECT_THAT(thrown_message([&] { all_reduce(*data); }), HasSubstr("[comm] rank 1 never came"));
  watchdog.join();
  EXPECT_THAT(connected_, ElementsAre());
  meeting_ = [](const auto&) {};
  all_reduce(*group("data", {0, 1}));
  EXPECT_THAT(connected_, ElementsAre("0,1:collectives")) << "a later call tries anew";
}

TEST_F(DeviceGroups, AbortsWhileConnecting) {
  const auto data = group("data", {0, 1});
  meeting_ = [&](const auto&) { data->abort("rank 1 died"); };
  all_reduce(*data);
  EXPECT_EQ(made_[0]->ended_by, "rank 1 died");
}

}  // namespace
}  // namespace colossal::test::device_group_test
