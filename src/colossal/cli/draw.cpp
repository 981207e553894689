#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/checksum.h"
#include "colossal/base/clock.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/machine.h"
#include "colossal/base/number.h"
#include "colossal/base/run_folder.h"
#include "colossal/checkpoint/checkpoint.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/local_world.h"
#include "colossal/cli/model_options.h"
#include "colossal/cli/text_lines.h"
#include "colossal/data/streams/json_lines.h"
#include "colossal/diffusion/draw_options.h"
#include "colossal/diffusion/drawing.h"
#include "colossal/diffusion/drawn_class.h"
#include "colossal/diffusion/run_objective.h"
#include "colossal/diffusion/run_sampler.h"

namespace colossal::cli {
namespace {

constexpr int64_t kPicturesAtOnce = 16;

struct DrawRequest {
  ModelOptions model;
  diffusion::DrawOptions options;
  std::string prompts, to, latents;
  bool as_json = false;
};

/// Pictures with the same options, but for their seeds.
struct DrawTask {
  diffusion::DrawOptions options;
  std::string where;  // the line of --prompts that asks for them, for messages
};

/// Adds a flag for each option.
class DrawFlagAdder : public Fields {
 public:
  explicit DrawFlagAdder(CLI::App& app) : app_(app) {}

 private:
  void visit(const Field& field) override {
    const std::string flag = concat("--", field.name);
    if (auto* const* is_on = std::get_if<bool*>(&field.value)) return void(app_.add_flag(flag, **is_on, field.help));
    if (auto* const* text = std::get_if<std::string*>(&field.value))
      return void(app_.add_option(flag, **text, field.help));
    if (auto* const* number = std::get_if<double*>(&field.value))
      return void(app_.add_option(flag, **number, field.help)->capture_default_str());
    app_.add_option(flag, *std::get<int64_t*>(field.value), field.help)->capture_default_str();
  }
  void visit_rest(ConfigDocument&) override {}
  void enter(const char*, const char*, const char*) override {}
  void leave() override {}

  CLI::App& app_;
};

/// Reads the tasks of --prompts, or the one of the flags, and checks each.
std::vector<DrawTask> tasks_of(const DrawRequest& r) {
  std::vector<DrawTask> tasks;
  if (r.prompts.empty()) {
    tasks.push_back({r.options, ""});
  } else {
    std::ifstream file(r.prompts, std::ios::binary);
    require(file.good() && !std::filesystem::is_directory(r.prompts), "draw", "cannot read ", r.prompts);
    int64_t number = 0;
    for (std::string line; std::getline(file, line);) {
      ++number;
      if (data::is_blank(line)) continue;
      DrawTask task{r.options, concat(r.prompts, ":", number, ": ")};
      try {
        nlohmann::ordered_json object = data::parse_ordered_json_line(line, r.prompts, number);
        if (object.is_object() && object.contains("class") && object["class"].is_number_integer())
          object["class"] = object["class"].dump();  // a class may have its number, as on the command line
        read_json(object, task.options, "draw");
      } catch (const Error& error) {
        if (error.message().starts_with(r.prompts)) throw;
        throw Error("draw", task.where + error.message());
      }
      tasks.push_back(std::move(task));
    }
    require(!tasks.empty(), "draw", r.prompts, " must have lines of options such as {\"class\": \"star\"}: got none");
  }
  for (const DrawTask& task : tasks) task.options.check(task.where);
  return tasks;
}

/// Reads the starting noise of a task.
at::Tensor read_latents(const std::string& path, const diffusion::DrawOptions& options,
                        const models::DenoiserSizes& sizes) {
  const checkpoint::SafetensorsReader file(path);
  require(file.contains("latents"), "draw", path, " must have the tensor latents");
  const at::Tensor latents = file.tensor("latents");
  const std::vector<int64_t> wanted{options.count, sizes.channels, sizes.height, sizes.width};
  require(latents.sizes() == at::IntArrayRef(wanted), "draw", "latents of ", path, " must have the sizes ",
          at::IntArrayRef(wanted), ", --count pictures: got ", latents.sizes());
  return latents.to(at::kDouble);
}

/// Returns the first digits of a checksum of the newest checkpoint, for the texts of pictures.
std::string checksum_of_model(const std::string& from) {
  const auto newest = checkpoint::latest(RunFolder(from).checkpoints());
  return newest ? file_checksum(*newest + "/manifest.json").substr(0, 10) : "";
}

/// Draws the tasks and writes their pictures. All ranks have one; rank 0 writes.
class PictureWriter {
 public:
  PictureWriter(const DrawRequest& request, const LoadedModel& loaded, const run::DiffusionObjective& objective)
      : r_(request),
        loaded_(loaded),
        objective_(objective),
        checksum_(checksum_of_model(request.model.from)),
        is_folder_(!request.to.ends_with(".png")) {}

  void draw(const DrawTask& task) {
    const diffusion::DrawOptions& o = task.options;
    const models::DenoiserSizes& sizes = objective_.sizes();
    const int64_t drawn = diffusion::drawn_class(o.drawn, objective_.class_names(), sizes.classes);
    const double guidance = o.guidance == 0 ? objective_.keys().guidance : o.guidance;
    const noise::SamplerPlan plan = o.plan(objective_);
    const at::Tensor latents = r_.latents.empty() ? at::Tensor() : read_latents(r_.latents, o, sizes);
    for (int64_t first = 0; first < o.count; first += kPicturesAtOnce) {
      const int64_t count = std::min(kPicturesAtOnce, o.count - first);
      const Stopwatch watch;
      const at::Tensor pictures = drawn_by_all(plan, drawn, guidance, o, first, count, latents);
      const double seconds = watch.seconds() / static_cast<double>(count);
      if (!loaded_.speaks()) continue;
      for (int64_t i = 0; i < count; ++i) write(pictures[i], o, drawn, guidance, o.seed + first + i, seconds);
    }
  }

 private:
  /// Draws a replica's share of the pictures, and gathers those of all.
  at::Tensor drawn_by_all(const noise::SamplerPlan& plan, int64_t drawn, double guidance,
                          const diffusion::DrawOptions& o, int64_t first, int64_t count,
                          const at::Tensor& latents) const {
    comm::Group& replicas = loaded_.mesh.group("data");
    const int64_t share = (count + replicas.size() - 1) / replicas.size();
    diffusion::Drawing drawing{.guidance = guidance, .rescale = o.rescale};
    std::vector<at::Tensor> starts;
    for (int64_t i = 0; i < share; ++i) {
      drawing.classes.push_back(drawn);
      // The last replicas may have fewer; what they draw instead is not used.
      const int64_t picture = std::min(replicas.rank() * share + i, count - 1);
      drawing.seeds.push_back(static_cast<uint64_t>(o.seed + first + picture));
      if (latents.defined()) starts.push_back(latents[first + picture]);
    }
    if (!starts.empty()) drawing.start = at::stack(starts);
    const at::Tensor own = diffusion::draw(*loaded_.saved.model, plan, drawing).contiguous();
    if (replicas.size() == 1) return own;
    at::Tensor all = at::empty({replicas.size() * own.numel()}, own.options());
    replicas.all_gather(all, own.flatten()).wait();
    std::vector<int64_t> sizes = own.sizes().vec();
    sizes[0] = replicas.size() * share;
    return all.view(sizes).narrow(0, 0, count);
  }

  void write(const at::Tensor& pixels, const diffusion::DrawOptions& o, int64_t drawn, double guidance, int64_t seed,
             double seconds) {
    const std::string sampler = diffusion::sampler_of(objective_.keys(), o.sampler);
    const std::string prompt = diffusion::class_title(drawn, objective_.class_names());
    const std::string text = concat(
        prompt, "\nSteps: ", o.steps, ", Sampler: ", sampler, ", CFG scale: ", print_number(guidance), ", Seed: ", seed,
        ", Size: ", pixels.size(2), "x", pixels.size(1), checksum_.empty() ? "" : ", Model hash: " + checksum_);
    const std::string path = is_folder_ ? free_path(seed) : r_.to;
    write_file(path, data::encode_png(diffusion::picture_of(pixels), {{"parameters", text}}));
    ++written_;
    if (!r_.as_json) {
      std::printf("%s\n", path.c_str());
    } else {
      const nlohmann::ordered_json line{{"path", path},       {"seed", seed},
                                        {"sampler", sampler}, {"steps", o.steps},
                                        {"seconds", seconds}, {"peak_bytes", peak_resident_bytes()}};
      std::puts(json_line(line).c_str());
    }
    std::fflush(stdout);
  }

  /// Returns the path of the next picture in the folder: its number in this command, and its seed.
  std::string free_path(int64_t seed) const {
    std::string number = std::to_string(written_);
    number.insert(0, number.size() < 4 ? 4 - number.size() : 0, '0');
    return concat(r_.to, "/", number, "-", seed, ".png");
  }

  const DrawRequest& r_;
  const LoadedModel& loaded_;
  const run::DiffusionObjective& objective_;
  std::string checksum_;
  bool is_folder_;
  int64_t written_ = 0;
};

}  // namespace

int draw(const Arguments& arguments, const run::Program* program) {
  CLI::App app("Draws pictures with the model of a run that has [diffusion], as PNG files.", "colossal draw");
  DrawRequest r;
  add_model_options(app, r.model);
  app.add_option("--parallel.data", r.model.layout.data, "number of ranks, or groups of them, that divide the pictures")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  DrawFlagAdder flags(app);
  r.options.fields(flags);
  app.add_option("--prompts", r.prompts,
                 "JSON lines, each with any of these options by its name: {\"class\": \"star\"}");
  app.add_option("--latents", r.latents,
                 "safetensors file whose tensor `latents` [count, channels, height, width] is the starting noise, of "
                 "unit variance; default: noise of the seeds");
  app.add_option("--to", r.to, "a .png file for one picture, or a folder, which is made")->required();
  app.add_flag("--json", r.as_json, "print a line of JSON for each picture");
  parse(app, arguments);
  check_model_options(app, r.model);
  const std::vector<DrawTask> tasks = tasks_of(r);
  const bool is_file = r.to.ends_with(".png");
  require(!is_file || (r.prompts.empty() && r.options.count == 1), "draw",
          "--to must be a folder for several pictures: got ", r.to, "; leave out .png");
  const run::Program known = program ? *program : run::built_in();
  const auto objective = diffusion::objective_of_run(r.model.from, known, "draw");
  for (const DrawTask& task : tasks) {
    diffusion::drawn_class(task.options.drawn, objective->class_names(), objective->sizes().classes);
    task.options.plan(*objective);
    if (!r.latents.empty()) read_latents(r.latents, task.options, objective->sizes());
  }
  return with_ranks(r.model.layout.ranks(), "draw", arguments, [&] {
    const auto world = join_layout(r.model);
    comm::Mesh mesh(*world, r.model.layout.axes());
    run::Loading loading = r.model.loading();
    loading.tokenizer = "none";
    const serve::ModelAndDraft loaded = serve::load_with_draft(r.model, loading, mesh, r.model.layout, &known);
    if (world->rank() == 0) {
      print_notices(loaded.model);
      if (!is_file) create_folder(r.to);
    }
    const LoadedModel here{*world, mesh, loaded.model};
    PictureWriter writer(r, here, *objective);
    for (const DrawTask& task : tasks) writer.draw(task);
    return 0;
  });
}

}  // namespace colossal::cli
