#include "colossal/cli/serve_pictures.h"

#include <ctime>
#include <optional>
#include <string>

#include "colossal/base/error.h"
#include "colossal/cli/local_world.h"
#include "colossal/cli/serving_rank.h"
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
  model.check_drawing = [&source](const diffusion::DrawOptions& wanted, const diffusion::GivenFiles& files) {
    diffusion::Drawer::check(source, wanted, {.files = files});
  };
  return model;
}

}  // namespace

int serve_pictures_as_rank(const ServeOptions& options, const run::Program* program) {
  ServingRank rank(options);
  const run::Program known = program ? *program : run::built_in();
  const run::PipelineSource source = diffusion::find_pipeline(options.model.from, known, "serve", "", options.other);
  require(source.sizes.frames == 0, "serve", "the model must draw pictures: got one of clips in ", options.model.from,
          "; draw them with `colossal draw`");
  run::Loading loading = options.model.loading();
  loading.tokenizer = "none";
  loading.control = source.control;
  loading.image_prompt = source.image_prompt;
  const serve::ModelAndDraft loaded = rank.load(loading, &known);
  const at::Device device = loaded.model.model->parameters().options().device;
  diffusion::PipelineParts parts(
      source, rank.part(), device,
      {{.dtype = loading.dtype, .uses_average = loading.uses_average}, loading.memory.has_tiers()}, known);
  for (const std::string& notice : parts.take_notices())
    if (rank.speaks()) say(notice);
  std::optional<diffusion::Drawer> drawer;
  rank.make_ready([&] {
    drawer.emplace(source, *loaded.model.model, parts, rank.mesh(),
                   rank.part().rank() == 0 ? diffusion::checksum_of_model(source.model) : "");
  });
  serve::DrawingLoop loop(rank.part(), rank.mesh(),
                          {.draw =
                               [&](const auto& wanted, const auto& given, const auto& take) {
                                 drawer->draw(wanted, given, take);
                                 return parts.take_notices();
                               },
                           .max_waiting = options.limits.max_waiting});
  return rank.serve(loop, model_of_pictures(options, source), concat(" draws pictures, ", options.printed_ranks()));
}

}  // namespace colossal::cli
