// A pipeline in this process, on a thread of its own, for programs that draw from any thread.
//
//   serve::LocalDrawer drawer(serve::read_local_drawer_options(R"({"from": "stable-diffusion-v1-5"})"));
//   const auto drawing = drawer.draw(drawer.options(R"({"prompt": "a cat", "count": 4, "steps": 50})"));
//   std::optional<serve::Drawn> drawn;
//   while (!drawn) drawn = drawing->next(std::chrono::seconds(1));
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/diffusion/draw_options.h"
#include "colossal/diffusion/saved_pipeline.h"
#include "colossal/serve/drawing_loop.h"
#include "colossal/serve/model_options.h"

namespace colossal::serve {

/// The options of a LocalDrawer: those of `colossal draw` that load a model, without those of ranks.
struct LocalDrawerOptions {
  ModelOptions model;
  diffusion::OtherParts other;

  void fields(Fields& f);
};

/// Reads the options from a JSON object of them, with underscores: {"from": "sd", "memory_device": "4GiB"}.
/// Errors: ("draw") text that is not JSON; an unknown option, with the nearest name; a wrong value; an option that has
///         no effect together with the others. Errors of ModelOptions::check().
LocalDrawerOptions read_local_drawer_options(const std::string& json);

/// Pictures that are drawn, or wait for it. Thread safety: any thread may call the members.
class LocalDrawing {
 public:
  struct State;
  explicit LocalDrawing(std::shared_ptr<State> state);
  ~LocalDrawing();  ///< calls cancel()
  LocalDrawing(const LocalDrawing&) = delete;
  LocalDrawing& operator=(const LocalDrawing&) = delete;

  /// Waits at most `timeout` for the pictures, and returns nothing if they are not drawn yet. Only one call returns
  /// them. Errors: those of diffusion::Drawer::draw(); ("draw") the drawing was cancelled, or the drawer closed.
  std::optional<Drawn> next(std::chrono::milliseconds timeout);
  /// Ends the drawing after its step.
  void cancel();

 private:
  std::shared_ptr<State> state_;
};

/// Loads a pipeline of diffusers, or a run whose model draws, on one rank. It draws for one caller after another.
/// Thread safety: any thread may call the members. None of them waits for a step, except close().
class LocalDrawer {
 public:
  /// Waits until the pipeline is loaded. Errors: those of ModelOptions::check(), diffusion::find_pipeline(),
  /// load_with_draft() and diffusion::PipelineParts.
  explicit LocalDrawer(LocalDrawerOptions options);
  ~LocalDrawer();  ///< calls close()

  /// Returns the options of a JSON object, with the names of diffusion::DrawOptions. For a model of classes, `prompt`
  /// may name the class. Errors ("draw"): an unknown option, a wrong value; those of diffusion::Drawer::check().
  diffusion::DrawOptions options(const std::string& json, const diffusion::GivenFiles& files = {}) const;
  /// Begins to draw and returns at once. `files`: pictures that the options name in place of paths. Errors ("draw"):
  /// the drawer is closed or has failed.
  std::unique_ptr<LocalDrawing> draw(diffusion::DrawOptions options, diffusion::GivenFiles files = {});
  /// Ends unfinished drawings, frees the model and waits until the thread has ended.
  void close();

  const std::vector<std::string>& notices() const;  ///< lines for the user about what was loaded

  struct Host;

 private:
  std::shared_ptr<Host> host_;
};

}  // namespace colossal::serve
