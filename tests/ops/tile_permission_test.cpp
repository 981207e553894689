#include "colossal/ops/tile_permission.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace colossal::ops::tile_permission_test {
namespace {

TEST(TilePermission, AsksOnlyForTilesThatTheMachineHas) {
  int questions = 0;
  const auto grant = [&] { return ++questions, 0; };
  const TilePermission without = ask_for_tiles(false, grant);
  EXPECT_FALSE(without.has_tiles);
  EXPECT_EQ(without.refusal, "");
  EXPECT_EQ(questions, 0);
  const TilePermission granted = ask_for_tiles(true, grant);
  EXPECT_TRUE(granted.has_tiles);
  EXPECT_EQ(granted.refusal, "");
  EXPECT_EQ(questions, 1);
}

TEST(TilePermission, ReportsARefusal) {
  const TilePermission refused = ask_for_tiles(true, [] { return EPERM; });
  EXPECT_TRUE(refused.has_tiles);
  EXPECT_EQ(refused.refusal, "Operation not permitted");
}

TEST(TilePermission, AsksOncePerProcess) {
  EXPECT_EQ(&tile_permission(), &tile_permission());
  if (!tile_permission().has_tiles) {
    EXPECT_EQ(tile_permission().refusal, "");
  }
}

}  // namespace
}  // namespace colossal::ops::tile_permission_test
