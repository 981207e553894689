// Two models that draw behind one Replicas, with a function that stands for the models.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/diffusion/drawing.h"
#include "colossal/serve/drawing_loop.h"
#include "colossal/serve/replicas/served_replicas.h"

namespace colossal::serve::drawing_replicas_test {
namespace {

template <class Condition>
void wait_until(const Condition& holds) {
  for (int i = 0; i < 20000 && !holds(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(holds());
}

class DrawingReplicas : public testing::Test {
 protected:
  /// Calls `use` in another thread while both replicas work.
  void with_replicas(const std::function<void(Replica&)>& use) {
    comm::run_ranks(2, [&](comm::World& world) {
      comm::PartOfWorld part(world, 2);
      comm::Mesh mesh(part, {{"rank", 1}});
      DrawingLoop loop(part, mesh, {.draw = [&](const auto&... what) { return draw(world.rank(), what...); }});
      ServedReplicas replicas(part, loop, 8);
      std::thread user;
      if (world.rank() == 0)
        user = std::thread([&] {
          use(replicas.replica());
          replicas.end();
        });
      replicas.run({});
      if (user.joinable()) user.join();
    });
  }

  std::atomic<bool> is_held = false;          // drawings do not end
  std::atomic<int> begun = 0, cancelled = 0;  // drawings
  std::atomic<bool> has_drawn[2] = {false, false};

 private:
  std::vector<std::string> draw(int replica, const diffusion::DrawOptions& options,
                                const diffusion::GivenPictures& given,
                                const std::function<void(const diffusion::DrawnPicture&)>& take) {
    has_drawn[replica] = true;
    ++begun;
    while (is_held) {
      if (given.stop_requested()) {
        ++cancelled;
        throw diffusion::StoppedDrawing();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    require(options.prompt != "bad", "grid", "sides must be even");
    for (int64_t k = 0; k < options.count; ++k)
      take({.png = options.prompt + given.files.at("mask"),
            .seed = options.seed + k,
            .sampler = "ddim",
            .steps = options.steps,
            .seconds = .5});
    return {"words are lost"};
  }
};

DrawingJob job(diffusion::DrawOptions options, std::promise<Drawn>& drawn) {
  return {std::move(options), [&drawn](Drawn one) { drawn.set_value(std::move(one)); }, {{"mask", " masked"}}};
}

TEST_F(DrawingReplicas, DrawInBothAndReturnAllOfAPicture) {
  with_replicas([&](Replica& replica) {
    std::promise<Drawn> promises[2];
    is_held = true;
    for (auto& promise : promises)
      EXPECT_TRUE(replica.draw(job({.prompt = "a cat", .count = 2, .seed = 3, .steps = 7}, promise)));
    wait_until([&] { return begun == 2; });
    is_held = false;
    for (auto& promise : promises) {
      const Drawn drawn = promise.get_future().get();
      EXPECT_FALSE(drawn.error);
      EXPECT_EQ(drawn.notices, std::vector<std::string>{"words are lost"});
      ASSERT_EQ(drawn.pictures.size(), 2u);
      EXPECT_EQ(drawn.pictures[1].png, "a cat masked");
      EXPECT_EQ(drawn.pictures[1].seed, 4);
      EXPECT_EQ(drawn.pictures[1].sampler, "ddim");
      EXPECT_EQ(drawn.pictures[1].steps, 7);
      EXPECT_EQ(drawn.pictures[1].seconds, .5);
    }
  });
  EXPECT_TRUE(has_drawn[0] && has_drawn[1]);
}

TEST_F(DrawingReplicas, ReturnErrorsAndGoOn) {
  with_replicas([&](Replica& replica) {
    std::promise<Drawn> bad[2], good;
    is_held = true;
    for (auto& promise : bad) replica.draw(job({.prompt = "bad"}, promise));
    wait_until([&] { return begun == 2; });
    is_held = false;
    for (auto& promise : bad) {
      const Drawn drawn = promise.get_future().get();
      ASSERT_TRUE(drawn.error);
      try {
        std::rethrow_exception(drawn.error);
      } catch (const Error& error) {
        EXPECT_STREQ(error.what(), "[grid] sides must be even");
      }
    }
    replica.draw(job({.prompt = "a cat"}, good));
    EXPECT_EQ(good.get_future().get().pictures.size(), 1u);
  });
}

TEST_F(DrawingReplicas, CancelInBoth) {
  with_replicas([&](Replica& replica) {
    const auto never = [](Drawn) { ADD_FAILURE() << "of a cancelled job"; };
    is_held = true;
    const Ticket first = replica.draw({{.prompt = "a cat"}, never}).value_or(0),
                 second = replica.draw({{.prompt = "a dog"}, never}).value_or(0);
    wait_until([&] { return begun == 2; });
    replica.cancel(first), replica.cancel(second);
    wait_until([&] { return cancelled == 2; });
    EXPECT_ANY_THROW(replica.add(Embedding{}));
  });
}

}  // namespace
}  // namespace colossal::serve::drawing_replicas_test
