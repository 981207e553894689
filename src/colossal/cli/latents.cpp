#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/local_world.h"
#include "colossal/cli/whole_program.h"
#include "colossal/comm/launch/device.h"
#include "colossal/diffusion/saved_pipeline.h"
#include "colossal/memory/host_memory.h"
#include "colossal/run/data.h"
#include "colossal/run/objectives/diffusion/diffusion_objective.h"
#include "colossal/run/objectives/diffusion/drawn_pictures.h"
#include "colossal/run/objectives/diffusion/latents_of_run.h"
#include "colossal/run/objectives/text_data.h"

namespace colossal::cli {

int latents(const Arguments& arguments, const run::Program* program) {
  CLI::App app(
      "Encodes pictures and their captions once, for runs that take them as --data.latents. Keys of a config are "
      "flags, as those of the run will be: --data.path=pictures --data.size=512,512 --data.mirror=true. The ranks of "
      "--parallel.data divide the pictures.",
      "colossal latents");
  std::string from, to;
  app.add_option("--from", from, "a pipeline of diffusers, or a run whose model draws latents")->required();
  app.add_option("--to", to, "folder for the latents; those that it has already stay")->required();
  app.allow_extras();
  parse(app, arguments);
  std::vector<std::string> flags = config_flags(app);
  // Held-out pictures are cropped in another way, and most callers do not know the share of their run.
  flags.insert(flags.begin(), {"--data.held_out=0", "--training.evaluate_batches=0"});
  flags.push_back("--model.from=" + from);
  flags.push_back("--data.latents=" + to);
  require(to != "none" && to != "auto", "latents", "--to must be a folder, and ", to,
          " is a mode of data.latents; write ./", to);
  const run::Program known = whole_program(program);
  const auto refused = [&] { return concat("--from must have a model that draws latents: got ", from); };
  require(diffusion::find_pipeline(from, known, "latents").has_latents(), "latents", refused(),
          ", whose model draws pixels");
  const run::Config config = run::read_given_config("", flags).config;
  const run::ResolvedModel model = run::resolve_model(config, known);
  const auto* objective = dynamic_cast<const run::DiffusionObjective*>(model.objective.objective.get());
  require(objective != nullptr && objective->pipeline().has_latents(), "latents", refused(), ", which ",
          model.shape.task().purpose());
  return with_ranks(config.parallel.ranks(), "latents", arguments, [&] {
    memory::keep_host_memory();  // every picture takes the same blocks
    const auto world = join_run(config.run, comm::cuda_devices());
    const run::PipelineSource& pipeline = objective->pipeline();
    run::DrawnPictures pictures;
    if (world->rank() == 0) {
      pictures = run::open_drawn_pictures(config, objective->data_keys(), pipeline);
      const auto captions = run::captions_of(config, pipeline, {&pictures});
      for (const std::string& line : run::caption_warnings(pipeline, captions)) say(line);
    }
    run::prepare_data(config, known, *world, {});
    if (world->rank() != 0) return 0;
    if (run::on_error_of(config.data) == data::OnError::Skip) {
      const run::LatentCache cache(to, run::key_of_latents(config, pipeline));
      run::skip_broken(pictures, run::encoded_in(cache, objective->data_keys().mirror));
      for (const std::string& line : pictures.notices) say(line);
    }
    std::printf("%s\n", to.c_str());
    return 0;
  });
}

}  // namespace colossal::cli
