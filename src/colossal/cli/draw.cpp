#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/clock.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/machine.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/cli/approximate_drawing.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/draw_clips.h"
#include "colossal/cli/draw_plan.h"
#include "colossal/cli/local_world.h"
#include "colossal/cli/model_options.h"
#include "colossal/cli/text_lines.h"
#include "colossal/comm/agreement.h"
#include "colossal/data/pictures/picture.h"
#include "colossal/data/streams/json_lines.h"
#include "colossal/diffusion/clip_length.h"
#include "colossal/diffusion/decoded_clip.h"
#include "colossal/diffusion/draw_options.h"
#include "colossal/diffusion/drawer.h"
#include "colossal/diffusion/given_picture.h"
#include "colossal/diffusion/pipeline_parts.h"
#include "colossal/diffusion/saved_pipeline.h"
#include "colossal/memory/host_memory.h"
#include "colossal/run/adapter_choice.h"
#include "colossal/run/objectives/diffusion/guidance_ranks.h"
#include "colossal/run/objectives/diffusion/pipeline_source.h"

namespace colossal::cli {
namespace {

struct DrawRequest {
  ModelOptions model;
  diffusion::DrawOptions options;
  int64_t guidance_ranks = 1;
  std::string prompts, to, latents, decode, cluster;
  diffusion::OtherParts other{};
  bool as_json = false, plans = false;
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

/// Reads the starting noise of all tasks; nothing if none is given.
diffusion::GivenPictures read_given(const std::string& path) {
  if (path.empty()) return {};
  const checkpoint::SafetensorsReader file(path);
  require(file.contains("latents"), "draw", path, " must have the tensor latents");
  return {.latents = file.tensor("latents").to(at::kDouble)};
}

/// Writes the pictures of the tasks, on the rank that speaks.
class PictureFiles {
 public:
  explicit PictureFiles(const DrawRequest& request) : r_(request), clips_(request.to, request.as_json) {}

  void write(const diffusion::DrawnPicture& drawn) {
    if (drawn.frames > 0) return clips_.write(drawn);
    const std::string path = names_drawn_file(r_.to) ? r_.to : numbered_path(r_.to, written_, drawn.seed, ".png");
    write_file(path, drawn.png);
    ++written_;
    if (!r_.as_json) {
      std::printf("%s\n", path.c_str());
      if (!drawn.note.empty()) say(concat(path, ": ", drawn.note));
      if (drawn.psnr) std::printf("%s\n", comparison_line(drawn).c_str());
    } else {
      nlohmann::ordered_json line{
          {"path", path},         {"seed", drawn.seed},       {"sampler", drawn.sampler},
          {"steps", drawn.steps}, {"seconds", drawn.seconds}, {"peak_bytes", peak_resident_bytes()}};
      if (!drawn.note.empty()) line["note"] = drawn.note;
      if (drawn.psnr) line["psnr"] = *drawn.psnr;
      std::puts(json_line(line).c_str());
    }
    std::fflush(stdout);
  }

 private:
  const DrawRequest& r_;
  ClipFiles clips_;
  int64_t written_ = 0;
};

/// Makes the folder of --to on rank 0. Its error is thrown on all ranks.
void make_folder(const DrawRequest& r, comm::Mesh& mesh) {
  comm::agree(mesh.all(), at::kCPU, [&] {
    if (mesh.world().rank() == 0 && !names_drawn_file(r.to)) create_folder(r.to);
  });
}

/// Writes the latents of a drawing that could not be decoded, and says how to go on.
[[noreturn]] void keep_latents(const DrawRequest& r, const diffusion::DrawOptions& options,
                               const diffusion::DecodingFailed& failure) {
  std::string path = names_drawn_file(r.to) ? r.to.substr(0, r.to.size() - 4) : concat(r.to, "/", failure.seed);
  path += ".latents.safetensors";
  checkpoint::write_safetensors(path, {{"latents", failure.latents}});
  const auto flag = [](const char* name, const std::string& value) {
    return value.empty() ? "" : concat(" ", name, " ", value);
  };
  const std::string parts = flag("--vae", r.other.vae) + flag("--text-encoder", r.other.text_encoder),
                    of_clips = failure.latents.dim() == 5 ? frame_flags(options) : "";
  throw Error("draw", concat(failure.message(), "; the latents are in ", path, ": `colossal draw --from ", r.model.from,
                             parts, " --decode ", path, of_clips, " --to ", r.to, "` finishes the pictures"));
}

/// Memory that waits for reuse while latents are decoded, which are large tensors of a few sizes.
constexpr size_t kWaitingBytes = size_t{256} << 20;

/// Decodes latents of an earlier command. All ranks of the layout share the rows of each picture.
int decode(const DrawRequest& r, const run::Program& known) {
  run::PipelineSource source = diffusion::find_pipeline(r.model.from, known, "draw", "", r.other);
  source.captions.clear();  // none are read
  source.sizes.text = 0;
  const checkpoint::SafetensorsReader file(r.decode);
  require(source.has_latents() && file.contains("latents"), "draw", "--decode must be a file with the tensor latents, ",
          "and --from a model that draws latents: got ", r.decode, " and ", r.model.from);
  const at::Tensor latents = file.tensor("latents").to(at::kFloat);
  const bool is_file = names_drawn_file(r.to), is_clip = latents.dim() == 5;
  require(!is_file || latents.size(0) == 1, "draw", "--to must be a folder for ", latents.size(0), " pictures: got ",
          r.to, "; leave out its ending");
  require(is_clip == (source.sizes.frames > 0), "draw", "the latents must be what the model draws: got ",
          latents.sizes(), "; name with --from the model that drew them");
  if (is_clip) {  // the length and the size, if --frames and --size are left out
    source.sizes.frames = latents.size(2);
    source.sizes.height = latents.size(3);
    source.sizes.width = latents.size(4);
  }
  const diffusion::ClipLength length = diffusion::clip_length(source, r.options.frames);
  require(!is_clip || length.latents == latents.size(2), "draw", "the latents of ", length.frames, " frames must be ",
          length.latents, " frames: got ", latents.sizes(), "; set --frames as in the command that wrote them");
  check_drawn_path(r.to, source, r.options);
  memory::keep_host_memory();
  memory::limit_host_memory(kWaitingBytes);
  const auto world = join_layout(r.model);
  const run::Loading loading = r.model.loading();
  const diffusion::PipelineParts parts(
      source, *world, comm::choose_device(r.model.device, world->local_rank()),
      {{.dtype = loading.dtype, .uses_average = loading.uses_average}, loading.memory.has_tiers()}, known);
  comm::Mesh mesh(*world, r.model.layout.axes());
  const bool speaks = world->rank() == 0;
  make_folder(r, mesh);
  const std::string note = r.options.tiles ? parts.note_of_tiles({latents.size(-2), latents.size(-1)}) : "";
  PictureFiles files(r);
  for (int64_t i = 0; i < latents.size(0); ++i) {
    const Stopwatch watch;
    if (is_clip) {
      const diffusion::ClipToDecode clip{
          .clip = latents.narrow(0, i, 1), .frames = length.frames, .in_tiles = r.options.tiles, .seed = i};
      decode_frames(parts, mesh, clip, r.options, [&](diffusion::DrawnPicture& frame) {
        frame.seconds = watch.seconds();
        frame.note = note;
        files.write(frame);
      });
      continue;
    }
    const at::Tensor pixels = parts.pixels(latents.narrow(0, i, 1), r.options.tiles, &mesh.all())[0];
    comm::agree(mesh.all(), at::kCPU, [&] {
      if (!speaks) return;
      files.write({.png = data::encode_png(diffusion::picture_of(pixels)),
                   .seed = i,
                   .seconds = watch.seconds(),
                   .note = note});
    });
  }
  return 0;
}

void add_draw_options(CLI::App& app, DrawRequest& r) {
  add_model_options(app, r.model, parallel::all_sequence_mode_names());
  app.add_option("--parallel.data", r.model.layout.data, "number of ranks, or groups of them, that divide the pictures")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--parallel.guidance", r.guidance_ranks,
                 "2 = both passes of guidance run at once, each on ranks of its own, with the whole layout twice")
      ->capture_default_str()
      ->check(CLI::Range(1, 2));
  DrawFlagAdder flags(app);
  r.options.fields(flags);
  add_part_options(app, r.other);
  app.add_option("--prompts", r.prompts,
                 "JSON lines, each with any of these options by its name: {\"class\": \"star\"}");
  app.add_option("--latents", r.latents,
                 "safetensors file whose tensor `latents` [count, channels, height, width] is the starting noise, of "
                 "unit variance; default: noise of the seeds");
  app.add_option("--decode", r.decode,
                 "draw nothing: decode the tensor `latents` of a safetensors file that an earlier command wrote, "
                 "because its decoding failed");
  app.add_option("--to", r.to,
                 "a .png file for one picture, a .gif, .y4m or .mp4 file for one clip, or a folder, which is made; it "
                 "gets clips as .gif");
  app.add_flag("--json", r.as_json, "print a line of JSON for each picture or clip");
  app.add_flag("--plan", r.plans,
               "draw nothing, but print memory and time on a cluster; --from may also be a preset such as sd-1.5");
  app.add_option("--cluster", r.cluster, "with --plan: hardware, as for `colossal plan`; default: this");
}

/// Checks that the pictures of the options are there, before a model is loaded.
void check_pictures(const diffusion::DrawOptions& options) {
  for (const std::string& path : {options.image, options.last, options.mask, options.control_image, options.ip_image})
    if (!path.empty()) diffusion::size_of_given_picture(path, 1);
}

/// The drawings of a command and what they need, the same on all ranks.
struct DrawWork {
  std::vector<DrawTask> tasks;
  run::PipelineSource source;
  diffusion::GivenPictures given;
  std::vector<run::AdapterChoice> adapters;
};

int draw_as_rank(const DrawRequest& r, const DrawWork& work, const run::Program& known) {
  memory::keep_host_memory();
  const auto world = join_layout(r.model, r.guidance_ranks, "guidance");
  comm::Mesh mesh(*world, run::axes_with_guidance(r.model.layout, r.guidance_ranks));
  comm::Mesh own = mesh.without({run::kGuidanceAxis});
  run::Loading loading = r.model.loading();
  loading.tokenizer = "none";
  run::set_adapters(loading, work.adapters);
  loading.control = work.source.control;
  loading.image_prompt = work.source.image_prompt;
  const serve::ModelAndDraft loaded = serve::load_with_draft(r.model, loading, own, r.model.layout, &known);
  const bool speaks = world->rank() == 0;
  if (speaks) print_notices(loaded.model);
  make_folder(r, mesh);
  PictureFiles files(r);
  const at::Device device = loaded.model.model->parameters().options().device;
  diffusion::PipelineParts parts(
      work.source, *world, device,
      {{.dtype = loading.dtype, .uses_average = loading.uses_average, .adapters = work.adapters},
       loading.memory.has_tiers()},
      known);
  diffusion::Drawer drawer(work.source, *loaded.model.model, parts, mesh,
                           speaks ? diffusion::checksum_of_model(work.source.model) : "");
  for (const DrawTask& task : work.tasks) {
    try {
      draw_beside_exact(
          task.options, work.given,
          [&](const auto& options, const auto& given, const auto& take) { drawer.draw(options, given, take); },
          [&](const diffusion::DrawnPicture& drawn) { files.write(drawn); });
    } catch (const diffusion::DecodingFailed& failure) {
      if (!speaks) throw;
      keep_latents(r, task.options, failure);
    }
    for (const std::string& notice : parts.take_notices())
      if (speaks) say(notice);
  }
  return 0;
}

}  // namespace

int draw(const Arguments& arguments, const run::Program* program) {
  CLI::App app("Draws pictures as PNG files, with a pipeline of diffusers or the model of a run that has [diffusion].",
               "colossal draw");
  DrawRequest r;
  add_draw_options(app, r);
  parse(app, arguments);
  if (r.plans && !r.options.approximate.empty())
    throw UsageError("colossal draw: --approximate has no effect with --plan, which prices exact drawings");
  if (r.plans) {
    diffusion::DrawOptions planned = r.options;
    if (planned.prompt.empty() && planned.drawn.empty()) planned.prompt = "x";  // a plan needs none
    planned.check();
  }
  if (r.plans) return draw_plan(r.model, r.guidance_ranks, r.options, r.other, r.cluster, r.as_json, program);
  if (r.to.empty()) throw UsageError("colossal draw: --to is required");
  check_drawn_name(r.to);
  if (!r.cluster.empty()) throw UsageError("colossal draw: --cluster has no effect without --plan");
  const run::Program known = program ? *program : run::built_in();
  if (!r.decode.empty()) {
    if (r.guidance_ranks > 1) throw UsageError("colossal draw: --parallel.guidance has no effect with --decode");
    return with_ranks(r.model.layout.ranks(), "draw", arguments, [&] { return decode(r, known); });
  }
  DrawWork work;
  for (const std::string& text : std::exchange(r.model.adapters, {})) work.adapters.push_back(run::parse_adapter(text));
  check_model_options(app, r.model);
  work.tasks = tasks_of(r);
  require(!names_drawn_file(r.to) || (r.prompts.empty() && r.options.count == 1), "draw",
          "--to must be a folder for several pictures: got ", r.to, "; leave out its ending");
  work.source = diffusion::find_pipeline(r.model.from, known, "draw", r.options.sampler, r.other);
  work.given = read_given(r.latents);
  for (const DrawTask& task : work.tasks) {
    diffusion::Drawer::check(work.source, task.options, work.given);
    check_pictures(task.options);
    check_drawn_path(r.to, work.source, task.options);
    run::check_guidance_ranks(r.guidance_ranks, diffusion::parts_of_drawing(work.source, task.options).guidance);
  }
  return with_ranks(r.guidance_ranks * r.model.layout.ranks(), "draw", arguments,
                    [&] { return draw_as_rank(r, work, known); });
}

}  // namespace colossal::cli
