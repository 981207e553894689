#include "colossal/comm/mesh.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "support/thrown_message.h"

namespace colossal::test::mesh_test {
namespace {

using comm::Mesh;
using comm::World;
using testing::HasSubstr;

/// Returns the world ranks of a group, collected from its members.
std::vector<int64_t> members(comm::Group& group, int world_rank) {
  at::Tensor all = at::empty({group.size()}, at::kLong);
  group.all_gather(all, at::full({1}, world_rank, at::kLong)).wait();
  return {all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + all.numel()};
}

TEST(Mesh, ArrangesRanksWithTheFirstAxisOutermost) {
  comm::run_ranks(8, [](World& world) {
    Mesh mesh(world, {{"data", 2}, {"pipeline", 1}, {"tensor", 4}});
    EXPECT_EQ(mesh.index("data"), world.rank() / 4);
    EXPECT_EQ(mesh.index("tensor"), world.rank() % 4);
    EXPECT_EQ(mesh.size("pipeline"), 1);
    EXPECT_EQ(mesh.size("sequence"), 1) << "an axis that was not named";
    EXPECT_EQ(mesh.group("sequence").size(), 1);
    EXPECT_EQ(mesh.group("pipeline").size(), 1);
  });
}

TEST(Mesh, MakesTheGroupOfEveryProductOfAxes) {
  comm::run_ranks(8, [](World& world) {
    Mesh mesh(world, {{"a", 2}, {"b", 2}, {"c", 2}});
    const int64_t r = world.rank(), a = r / 4, b = r / 2 % 2, c = r % 2;
    using Ranks = std::vector<int64_t>;
    EXPECT_EQ(members(mesh.group("a"), r), (Ranks{2 * b + c, 4 + 2 * b + c}));
    EXPECT_EQ(members(mesh.group("c"), r), (Ranks{4 * a + 2 * b, 4 * a + 2 * b + 1}));
    EXPECT_EQ(members(mesh.group({"a", "c"}), r), (Ranks{2 * b, 2 * b + 1, 2 * b + 4, 2 * b + 5}));
    EXPECT_EQ(members(mesh.group({"c", "a"}), r), (Ranks{2 * b, 2 * b + 4, 2 * b + 1, 2 * b + 5}));
    EXPECT_EQ(members(mesh.group({"a", "b", "c"}), r), (Ranks{0, 1, 2, 3, 4, 5, 6, 7}));
    EXPECT_EQ(mesh.group({"a", "c"}).name(), "a+c");
    EXPECT_EQ(mesh.group({"a", "c"}).rank(), 2 * a + c);
    EXPECT_EQ(mesh.group({"a", "c"}).rank(), mesh.coordinates().index(std::vector<std::string>{"a", "c"}));
    EXPECT_EQ(&mesh.group({"a", "c"}), &mesh.group({"a", "c"})) << "made once";
  });
}

TEST(Mesh, CutsAnAxisIntoRunsOfNeighbours) {
  comm::run_ranks(8, [](World& world) {
    Mesh mesh(world, {{"tensor", 4}, {"data", 2}});
    const int64_t r = world.rank(), tensor = r / 2, data = r % 2, first = tensor / 2 * 2;
    comm::Group& pair = mesh.neighbours("tensor", 2);
    EXPECT_EQ(members(pair, r), (std::vector<int64_t>{2 * first + data, 2 * first + 2 + data}));
    EXPECT_EQ(pair.name(), "tensor/2");
    EXPECT_EQ(mesh.neighbours("tensor", 1).size(), 1);
  });
}

TEST(Mesh, GivesEachDirectionBetweenTwoRanksAGroup) {
  comm::run_ranks(6, [](World& world) {
    Mesh mesh(world, {{"pipeline", 3}, {"data", 2}});
    const int index = mesh.index("pipeline"), data = mesh.index("data");
    for (const auto& [from, to] : {std::pair{0, 1}, {0, 2}, {1, 0}, {2, 0}}) {
      if (index != from && index != to) continue;
      comm::Group& group = mesh.one_way("pipeline", from, to);
      EXPECT_EQ(members(group, world.rank()), (std::vector<int64_t>{2 * from + data, 2 * to + data}));
      EXPECT_EQ(group.name(), concat("pipeline ", from, ">", to));
      EXPECT_EQ(&group, &mesh.one_way("pipeline", from, to)) << "made once";
    }
  });
}

TEST(Mesh, GivesEachPurposeASeparateGroup) {
  comm::run_ranks(4, [](World& world) {
    Mesh mesh(world, {{"data", 2}, {"sequence", 2}});
    comm::Group &usual = mesh.group("sequence"), &own = mesh.channel("sequence", "attention");
    EXPECT_NE(&usual, &own);
    EXPECT_EQ(&own, &mesh.channel("sequence", "attention")) << "made once";
    EXPECT_EQ(members(own, world.rank()), members(usual, world.rank()));
    EXPECT_EQ(own.name(), "sequence attention");
    EXPECT_EQ(world.traffic().total("sequence", "all_gather").calls, 2);
    EXPECT_EQ(mesh.channel("tensor", "attention").size(), 1) << "an axis that was not named";
  });
}

TEST(Mesh, CountsOneWayGroupsUnderTheirAxis) {
  comm::run_ranks(2, [](World& world) {
    Mesh mesh(world, {{"pipeline", 2}});
    at::Tensor x = at::zeros({5});
    comm::Group& down = mesh.one_way("pipeline", 0, 1);
    if (world.rank() == 0)
      down.send(x, 1).wait();
    else
      down.recv(x, 0).wait();
    EXPECT_EQ(world.traffic().total("pipeline", "send").elements, world.rank() == 0 ? 5 : 0);
    EXPECT_EQ(world.traffic().total("pipe").calls, 0);
  });
}

TEST(Mesh, RefusesAxesThatDoNotMultiplyToTheWorld) {
  comm::run_ranks(4, [](World& world) {
    EXPECT_THAT(
        thrown_message([&] { Mesh(world, {{"data", 2}, {"tensor", 3}}); }),
        HasSubstr("[parallel] the sizes of the axes must multiply to the number of ranks: got data 2 x tensor 3 = 6 "
                  "for 4 ranks"));
    EXPECT_THAT(thrown_message([&] { Mesh(world, {{"data", 0}, {"tensor", 4}}); }), HasSubstr("at least 1: got 0"));
    EXPECT_THAT(thrown_message([&] { Mesh(world, {{"data", 2}, {"data", 2}}); }), HasSubstr("given twice"));
    Mesh mesh(world, {{"data", 4}});
    EXPECT_THAT(thrown_message([&] { mesh.neighbours("data", 3); }), HasSubstr("must divide"));
    EXPECT_THAT(thrown_message([&] { mesh.group({"data", "data"}); }), HasSubstr("twice"));
    const int own = world.rank();
    for (const auto& [from, to] : {std::pair{own, own}, {own, 4}, {-1, own}, {(own + 1) % 4, (own + 2) % 4}})
      EXPECT_THAT(thrown_message([&] { mesh.one_way("data", from, to); }),
                  HasSubstr(concat("needs this rank and another one along data of size 4: got ", from, ">", to,
                                   " at index ", own)));
  });
}

TEST(World, RefusesGroupsWithoutTheCallingRank) {
  comm::run_ranks(2, [](World& world) {
    EXPECT_THAT(thrown_message([&] { world.make_group("other", {1 - world.rank()}); }), HasSubstr("only members"));
    EXPECT_THAT(thrown_message([&] { world.make_group("far", {world.rank(), 7}); }), HasSubstr("[0, 2): got 7"));
    EXPECT_THAT(thrown_message([&] { world.make_group("twice", {world.rank(), world.rank()}); }), HasSubstr("twice"));
  });
}

}  // namespace
}  // namespace colossal::test::mesh_test
