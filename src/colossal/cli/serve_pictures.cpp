#include "colossal/cli/serve_pictures.h"

#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/cli/local_world.h"
#include "colossal/cli/server_front.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/part_of_world.h"
#include "colossal/diffusion/drawer.h"
#include "colossal/diffusion/pipeline_parts.h"
#include "colossal/diffusion/saved_pipeline.h"
#include "colossal/serve/drawing_loop.h"
#include "colossal/serve/replicas/served_replicas.h"

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
  const auto world = join_layout(options.model, options.replicas);
  say_stalls_of_work(*world);
  const bool is_first = world->rank() == 0;
  serve::check_replicas(*world, options.replicas, options.model.layout.ranks());
  comm::Mesh everyone(*world, {{"rank", world->size()}});
  std::unique_ptr<ServerFront> front;
  comm::agree(everyone.all(), at::kCPU, [&] {
    if (is_first) front = std::make_unique<ServerFront>(options);
  });
  comm::PartOfWorld part(*world, static_cast<int>(options.replicas));
  comm::Mesh mesh(part, options.model.layout.axes());
  const run::Program known = program ? *program : run::built_in();
  const run::PipelineSource source = diffusion::find_pipeline(options.model.from, known, "serve");
  run::Loading loading = options.model.loading();
  loading.tokenizer = "none";
  const serve::ModelAndDraft loaded =
      serve::load_with_draft(options.model, loading, mesh, options.model.layout, &known);
  if (is_first) print_notices(loaded.model);
  const at::Device device = loaded.model.model->parameters().options().device;
  diffusion::PipelineParts parts(
      source, part, device,
      {{.dtype = loading.dtype, .uses_average = loading.uses_average}, loading.memory.has_tiers()}, known);
  for (const std::string& notice : parts.take_notices())
    if (is_first) say(notice);
  diffusion::Drawer drawer(source, *loaded.model.model, parts, mesh,
                           is_first ? diffusion::checksum_of_model(source.model) : "");
  if (is_first)
    watch_stop_signals(world->size() > 1 ? SecondSignal::IsReported : SecondSignal::Ends);
  else
    ignore_stop_signals();
  serve::DrawingLoop loop(part, mesh,
                          {.draw =
                               [&](const auto& wanted, const auto& given, const auto& take) {
                                 drawer.draw(wanted, given, take);
                                 return parts.take_notices();
                               },
                           .max_waiting = options.limits.max_waiting});
  serve::ServedReplicas replicas(part, loop, options.limits.max_waiting);
  if (!front) {
    replicas.run({});
    return 0;
  }
  return front->serve_until_stopped(
      {.open =
           [&] {
             front->service().open(model_of_pictures(options, source), replicas.replica());
             say(concat("ready at ", front->url(), ": ", options.name, " draws pictures, ", options.printed_ranks()));
           },
       .run = [&](const std::function<void()>& poll) { replicas.run(poll); },
       .end = [&] { replicas.end(); }});
}

}  // namespace colossal::cli
