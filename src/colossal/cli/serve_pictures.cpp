#include "colossal/cli/serve_pictures.h"

#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/cli/local_world.h"
#include "colossal/cli/server_front.h"
#include "colossal/comm/agreement.h"
#include "colossal/diffusion/drawer.h"
#include "colossal/diffusion/pipeline_parts.h"
#include "colossal/diffusion/saved_pipeline.h"
#include "colossal/serve/drawing_loop.h"

namespace colossal::cli {
namespace {

serve::ServedModel model_of_pictures(const ServeOptions& options, const run::PipelineSource& source) {
  serve::ServedModel model{.name = options.name,
                           .demands_name = options.demands_name,
                           .created = static_cast<int64_t>(std::time(nullptr)),
                           .draws_classes = !source.reads_text()};
  model.check_drawing = [&source](const diffusion::DrawOptions& wanted) {
    diffusion::Drawer::check(source, wanted, {});
  };
  return model;
}

}  // namespace

int serve_pictures_as_rank(const ServeOptions& options, const run::Program* program) {
  ignore_broken_pipes();
  end_on_stop_signals();  // nothing is lost before the model is loaded
  const auto world = join_layout(options.model);
  say_stalls_of_work(*world);
  const bool is_first = world->rank() == 0;
  comm::Mesh mesh(*world, options.model.layout.axes());
  std::unique_ptr<ServerFront> front;
  comm::agree(mesh.all(), at::kCPU, [&] {
    if (is_first) front = std::make_unique<ServerFront>(options);
  });
  const run::Program known = program ? *program : run::built_in();
  const run::PipelineSource source = diffusion::find_pipeline(options.model.from, known, "serve");
  run::Loading loading = options.model.loading();
  loading.tokenizer = "none";
  const serve::ModelAndDraft loaded =
      serve::load_with_draft(options.model, loading, mesh, options.model.layout, &known);
  if (is_first) print_notices(loaded.model);
  const at::Device device = loaded.model.model->parameters().options().device;
  diffusion::PipelineParts parts(source, *world, device, {.dtype = loading.dtype, .uses_average = loading.uses_average},
                                 known);
  for (const std::string& notice : parts.take_notices())
    if (is_first) say(notice);
  diffusion::Drawer drawer(source, *loaded.model.model, parts, mesh, diffusion::checksum_of_model(source.model));
  if (is_first)
    watch_stop_signals(world->size() > 1 ? SecondSignal::IsReported : SecondSignal::Ends);
  else
    ignore_stop_signals();
  serve::DrawingLoop loop(*world, mesh,
                          {.draw =
                               [&](const auto& wanted, const auto& given, const auto& take) {
                                 drawer.draw(wanted, given, take);
                                 return parts.take_notices();
                               },
                           .max_waiting = options.limits.max_waiting});
  if (!front) {
    loop.run({});
    return 0;
  }
  const int64_t ranks = world->size();
  return front->serve_until_stopped({.open =
                                         [&] {
                                           front->service().open(model_of_pictures(options, source), loop);
                                           say(concat("ready at ", front->url(), ": ", options.name,
                                                      " draws pictures, ", ranks, ranks == 1 ? " rank" : " ranks"));
                                         },
                                     .run = [&](const std::function<void()>& poll) { loop.run(poll); },
                                     .end = [&] { loop.end(); }});
}

}  // namespace colossal::cli
