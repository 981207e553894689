// Jobs of a loop of one and of two ranks, with a function that stands for a model.
#include "colossal/serve/drawing_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <thread>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/diffusion/drawing.h"

namespace colossal::serve {
namespace {

using diffusion::DrawnPicture;
using diffusion::DrawOptions;
using diffusion::GivenPictures;
using Take = std::function<void(const DrawnPicture&)>;

/// Calls `draw` for each job on every rank, and `use` in another thread while the loop of rank 0 runs.
template <class Draw, class Use>
void with_loop(int ranks, const Draw& draw, const Use& use, int64_t max_waiting = 8) {
  comm::run_ranks(ranks, [&](comm::World& world) {
    comm::Mesh mesh(world, {{"rank", ranks}});
    DrawingLoop loop(world, mesh,
                     {.draw =
                          [&](const DrawOptions& options, const GivenPictures& given, const Take& take) {
                            draw(world.rank(), options, given, take);
                            return std::vector<std::string>{};
                          },
                      .max_waiting = max_waiting});
    std::thread user;
    if (world.rank() == 0)
      user = std::thread([&] {
        use(loop);
        loop.end();
      });
    try {
      loop.run({});
    } catch (...) {
      if (user.joinable()) user.join();
      throw;
    }
    if (user.joinable()) user.join();
  });
}

Drawn drawn_by(DrawingLoop& loop, DrawOptions options, diffusion::GivenFiles files = {}) {
  std::promise<Drawn> promise;
  std::future<Drawn> drawn = promise.get_future();
  EXPECT_TRUE(loop.draw({std::move(options), [&](Drawn one) { promise.set_value(std::move(one)); }, std::move(files)}));
  return drawn.get();
}

void wait_until_stopped(const GivenPictures& given) {
  while (!given.stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  throw diffusion::StoppedDrawing();
}

template <class Condition>
void wait_until(const Condition& holds) {
  for (int i = 0; i < 20000 && !holds(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(holds());
}

TEST(DrawingLoop, GivesAllRanksTheOptions) {
  std::mutex mutex;
  std::vector<std::string> seen;
  const auto draw = [&](int rank, const DrawOptions& options, const GivenPictures& given, const Take& take) {
    EXPECT_FALSE(given.stop_requested());
    if (rank == 0) take({.png = options.prompt, .seed = options.seed});
    const std::scoped_lock lock(mutex);
    seen.push_back(concat(options.prompt, options.negative, options.size, options.guidance, options.karras,
                          given.files.at(options.image)));
  };
  with_loop(2, draw, [&](DrawingLoop& loop) {
    const Drawn drawn = drawn_by(
        loop,
        {.prompt = "cat", .negative = "dog", .size = "8x4", .seed = -7, .karras = true, .guidance = 2.5, .image = "a"},
        {{"a", "bytes"}, {"b", "others"}});
    ASSERT_EQ(drawn.pictures.size(), 1u);
    EXPECT_EQ(drawn.pictures[0].png, "cat");
    EXPECT_EQ(drawn.pictures[0].seed, -7);
  });
  EXPECT_EQ(seen, std::vector<std::string>(2, "catdog8x42.51bytes"));
}

TEST(DrawingLoop, StopsACancelledDrawingOnAllRanks) {
  for (const int ranks : {1, 2}) {
    std::atomic<int> begun = 0;
    const auto draw = [&](int rank, const DrawOptions& options, const GivenPictures& given, const Take& take) {
      if (options.prompt == "quick") return rank == 0 ? take({.png = "done"}) : void();
      ++begun;
      wait_until_stopped(given);
    };
    with_loop(ranks, draw, [&](DrawingLoop& loop) {
      const auto never = [](Drawn) { ADD_FAILURE() << "of a cancelled job"; };
      const auto first = loop.draw({{.prompt = "slow"}, never}), second = loop.draw({{.prompt = "slow"}, never});
      wait_until([&] { return begun == ranks; });
      EXPECT_EQ(loop.load().running, 1);
      EXPECT_EQ(loop.load().waiting, 1);
      loop.cancel(*second);
      EXPECT_EQ(loop.load().waiting, 0);
      loop.cancel(*first);
      EXPECT_EQ(drawn_by(loop, {.prompt = "quick"}).pictures.at(0).png, "done");
      EXPECT_EQ(begun, ranks);
    });
  }
}

TEST(DrawingLoop, EndsWithoutItsJobs) {
  std::atomic<bool> has_begun = false;
  std::optional<Ticket> late = 1;
  const auto draw = [&](int, const DrawOptions&, const GivenPictures& given, const Take&) {
    has_begun = true;
    wait_until_stopped(given);
  };
  const auto never = [](Drawn) { ADD_FAILURE() << "of a loop that has ended"; };
  with_loop(1, draw, [&](DrawingLoop& loop) {
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(loop.draw({{.prompt = "slow"}, never}));
    wait_until([&] { return has_begun.load(); });
    loop.end();
    late = loop.draw({{.prompt = "late"}, never});
  });
  EXPECT_FALSE(late.has_value());
}

TEST(DrawingLoop, TakesOnlySoManyJobs) {
  std::atomic<bool> has_begun = false;
  const auto draw = [&](int, const DrawOptions&, const GivenPictures& given, const Take&) {
    has_begun = true;
    wait_until_stopped(given);
  };
  with_loop(
      1, draw,
      [&](DrawingLoop& loop) {
        EXPECT_TRUE(loop.draw({{.prompt = "drawn"}, {}}));
        wait_until([&] { return has_begun.load(); });
        EXPECT_TRUE(loop.draw({{.prompt = "waits"}, {}}));
        EXPECT_FALSE(loop.draw({{.prompt = "refused"}, {}}));
      },
      /*max_waiting=*/1);
}

TEST(DrawingLoop, GoesOnAfterTheErrorOfAJobOfOneRank) {
  const auto draw = [](int, const DrawOptions& options, const GivenPictures&, const Take& take) {
    take({.png = "part"});
    require(options.prompt == "good", "draw", "a prompt must be good");
  };
  with_loop(1, draw, [](DrawingLoop& loop) {
    const Drawn bad = drawn_by(loop, {.prompt = "bad"});
    EXPECT_TRUE(bad.pictures.empty());
    ASSERT_TRUE(bad.error);
    EXPECT_THROW(std::rethrow_exception(bad.error), Error);
    EXPECT_FALSE(drawn_by(loop, {.prompt = "good"}).error);
  });
}

TEST(DrawingLoop, EndsWithTheErrorOfOneOfSeveralRanks) {
  std::atomic<int> added = 0;
  const auto draw = [&](int rank, const DrawOptions&, const GivenPictures& given, const Take&) {
    wait_until([&] { return rank == 0 || added == 2; });  // the second job is added to a loop that works
    require(rank == 0, "draw", "rank 1 must work");
    wait_until_stopped(given);
  };
  std::atomic<int> failed = 0;
  const auto count = [&](const Drawn& one) { failed += one.error && one.replica_has_ended ? 1 : 0; };
  EXPECT_THROW(with_loop(2, draw,
                         [&](DrawingLoop& loop) {
                           for (int i = 0; i < 2; ++i, ++added) EXPECT_TRUE(loop.draw({{.prompt = "x"}, count}));
                           wait_until([&] { return failed == 2; });
                           EXPECT_FALSE(loop.draw({{.prompt = "late"}, {}}));
                         }),
               Error);
  EXPECT_EQ(failed, 2);
}

}  // namespace
}  // namespace colossal::serve
