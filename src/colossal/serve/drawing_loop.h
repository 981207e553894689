// Draws the pictures of requests one request after another, on all ranks. Rank 0 takes requests from other threads.
//
//   serve::DrawingLoop loop(world, mesh, {.draw = [&](const auto&... what) { return draw_with(drawer, what...); }});
//   loop.run([] { ... });                                     // on every rank, the thread that loaded the model
//   const auto ticket = loop.draw({.options = {.prompt = "a cat"}, .on_end = [](Drawn drawn) { ... }});  // any thread
//   loop.cancel(*ticket);                                     // the drawing ends after its step
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/comm/world.h"
#include "colossal/diffusion/draw_options.h"
#include "colossal/diffusion/drawer.h"
#include "colossal/serve/replica.h"

namespace colossal::serve {

struct DrawingLoopOptions {
  /// Draws (diffusion::Drawer::draw()) and returns lines for the user. All ranks call it with the same options; it
  /// gives the pictures to `take` on rank 0.
  std::function<std::vector<std::string>(const diffusion::DrawOptions&, const diffusion::GivenPictures&,
                                         const std::function<void(const diffusion::DrawnPicture&)>& take)>
      draw{};
  int64_t max_waiting = 256;  ///< maximum number of jobs that wait while another one is drawn
};

/// Before each job rank 0 broadcasts its options and files, and before each step of the sampler whether the drawing
/// goes on. While there is no job, rank 0 waits under World::busy and the others wait in that broadcast.
///
/// Communication: a broadcast_text for each job and for each step, and that of the function `draw`. None with one rank.
/// Errors:        with one rank an error of a job is its result, and the loop goes on. With several ranks the others
///                may wait for the one that failed, so run() gives the error to all jobs and throws it.
/// Thread safety: any thread of rank 0 may call draw(), cancel(), load() and end(). None of them waits for a step.
class DrawingLoop final : public ReplicaLoop {
 public:
  /// `world` and `mesh` must outlive the loop.
  DrawingLoop(comm::World& world, comm::Mesh& mesh, DrawingLoopOptions options);
  ~DrawingLoop() override;

  /// Takes a job and returns its ticket; nothing if the queue has no room or the loop has ended.
  std::optional<Ticket> draw(DrawingJob job) override;
  /// Ends a job that waits at once, and one that is drawn after its step. Its function is not called any more, unless
  /// it is called at this moment. Ignores jobs that have ended.
  void cancel(Ticket ticket) override;
  /// Returns the number of jobs that wait, and 1 while one is drawn; a drawing has no blocks.
  ReplicaLoad load() const override;

  void run(const std::function<void()>& poll) override;
  void end() override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace colossal::serve
