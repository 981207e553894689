#include "colossal/run/objectives/diffusion/scheduler_config.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/base/suggest.h"
#include "colossal/checkpoint/ldm/file.h"
#include "colossal/models/folder_config.h"

namespace colossal::run {
namespace {

using models::FolderKeys;
using nlohmann::json;

constexpr char kScheduler[] = "scheduler", kAlgorithm[] = "algorithm_type", kSde[] = "sde-dpmsolver++",
               kSdeSampler[] = "dpm++2m-sde", kInfinity[] = "-Infinity";

/// The values of a config, in the words of diffusers. The rows of each class read and write those that it has.
struct SchedulerValues {
  int64_t levels = 1000, offset = 0;
  double beta_start = 1e-4, beta_end = .02, clip_range = 1, shift = 1;
  std::string schedule = "linear", prediction = "epsilon", spacing = "leading", final_sigmas = "zero",
              algorithm = "dpmsolver++", variance = "fixed_small";
  bool clips = false, zero_snr = false, alpha_to_one = true, karras = false, skips_prk = true, dynamic = false;
};
using Values = SchedulerValues;

// Rows that several classes have. Defaults are those of the classes in diffusers 0.42.

void table_keys(FolderKeys& k, Values& v, double beta_start = 1e-4, double beta_end = .02) {
  k.optional("num_train_timesteps", v.levels, 1000);
  k.optional("beta_start", v.beta_start, beta_start);
  k.optional("beta_end", v.beta_end, beta_end);
  k.choice("beta_schedule", v.schedule, {"linear", "scaled_linear", "squaredcos_cap_v2"}, "linear");
  k.fixed("trained_betas", nullptr);
}

void prediction_key(FolderKeys& k, Values& v,
                    const std::vector<json>& allowed = {"epsilon", "v_prediction", "sample"}) {
  k.choice("prediction_type", v.prediction, allowed, "epsilon");
}

void spacing_keys(FolderKeys& k, Values& v, const char* otherwise) {
  k.choice("timestep_spacing", v.spacing, {"leading", "trailing", "linspace"}, otherwise);
  k.optional("steps_offset", v.offset, 0);
}

void zero_snr_key(FolderKeys& k, Values& v) { k.optional("rescale_betas_zero_snr", v.zero_snr, false); }

void clip_keys(FolderKeys& k, Values& v, bool otherwise) {
  k.optional("clip_sample", v.clips, otherwise);
  k.optional("clip_sample_range", v.clip_range, 1.0);
}

void threshold_keys(FolderKeys& k) {
  k.fixed("thresholding", false);
  k.written("dynamic_thresholding_ratio", .995);  // read only with thresholding
  k.written("sample_max_value", 1.0);
}

void sigma_keys(FolderKeys& k, Values& v) {
  k.optional("use_karras_sigmas", v.karras, false);
  k.fixed("use_exponential_sigmas", false);
  k.fixed("use_beta_sigmas", false);
}

void final_sigma_key(FolderKeys& k, Values& v) {
  k.choice("final_sigmas_type", v.final_sigmas, {"zero", "sigma_min"}, "zero");
}

void flow_keys_of_table(FolderKeys& k) {
  k.fixed("use_flow_sigmas", false);
  k.written("flow_shift", 1.0);  // read only with use_flow_sigmas
  k.fixed("use_dynamic_shifting", false);
  k.written("time_shift_type", "exponential");  // read only with use_dynamic_shifting
}

// The rows of each class.

void ddpm_keys(FolderKeys& k, Values& v) {
  table_keys(k, v);
  prediction_key(k, v);
  spacing_keys(k, v, "leading");
  zero_snr_key(k, v);
  clip_keys(k, v, true);
  threshold_keys(k);
  // fixed_small_log is the same variance as fixed_small, and learned and fixed_large_log are no variances
  k.choice("variance_type", v.variance, {"fixed_small", "fixed_small_log", "fixed_large", "learned_range"},
           "fixed_small");
}

void ddim_keys(FolderKeys& k, Values& v) {
  table_keys(k, v);
  prediction_key(k, v);
  spacing_keys(k, v, "leading");
  zero_snr_key(k, v);
  clip_keys(k, v, true);
  threshold_keys(k);
  k.optional("set_alpha_to_one", v.alpha_to_one, true);
}

void pndm_keys(FolderKeys& k, Values& v) {
  table_keys(k, v);
  prediction_key(k, v, {"epsilon", "v_prediction"});
  spacing_keys(k, v, "leading");
  k.optional("set_alpha_to_one", v.alpha_to_one, false);
  k.optional("skip_prk_steps", v.skips_prk, false);
  require(v.skips_prk, kScheduler,
          "skip_prk_steps of a PNDMScheduler must be true, because pndm has no Runge-Kutta steps here: got false; set "
          "it in scheduler_config.json, or name another sampler");
}

void euler_keys(FolderKeys& k, Values& v) {
  table_keys(k, v);
  prediction_key(k, v);
  spacing_keys(k, v, "linspace");
  zero_snr_key(k, v);
  sigma_keys(k, v);
  final_sigma_key(k, v);
  k.fixed("interpolation_type", "linear");
  k.fixed("timestep_type", "discrete");
  k.fixed("sigma_min", nullptr);
  k.fixed("sigma_max", nullptr);
}

void euler_ancestral_keys(FolderKeys& k, Values& v) {
  table_keys(k, v);
  prediction_key(k, v);
  spacing_keys(k, v, "linspace");
  zero_snr_key(k, v);
}

void heun_keys(FolderKeys& k, Values& v) {
  table_keys(k, v, 8.5e-4, .012);
  prediction_key(k, v);
  spacing_keys(k, v, "linspace");
  sigma_keys(k, v);
  clip_keys(k, v, false);
}

/// The keys that both solvers of second order have.
void multistep_keys(FolderKeys& k, Values& v) {
  table_keys(k, v);
  prediction_key(k, v);
  spacing_keys(k, v, "linspace");
  zero_snr_key(k, v);
  threshold_keys(k);
  sigma_keys(k, v);
  final_sigma_key(k, v);
  flow_keys_of_table(k);
  k.fixed("solver_order", 2);
}

void dpm_keys(FolderKeys& k, Values& v) {
  multistep_keys(k, v);
  k.choice(kAlgorithm, v.algorithm, {"dpmsolver++", kSde, "deis"}, "dpmsolver++");  // deis is taken for dpmsolver++
  if (k.reads()) k.config().must_be_one_of("solver_type", {"midpoint", "logrho", "bh1", "bh2"});  // all are midpoint
  k.written("solver_type", "midpoint");
  // the last step is of first order anyway if it ends at the picture
  if (k.reads() && v.final_sigmas == "sigma_min") {
    k.only("lower_order_final", true);
    k.only("euler_at_final", false);
  }
  k.written("lower_order_final", true);
  k.written("euler_at_final", false);
  k.fixed("use_lu_lambdas", false);
  k.only("lambda_min_clipped", -std::numeric_limits<double>::infinity());
  k.fixed("variance_type", nullptr);
}

void unipc_keys(FolderKeys& k, Values& v) {
  multistep_keys(k, v);
  k.fixed("predict_x0", true);
  if (k.reads()) k.config().must_be_one_of("solver_type", {"bh2", "midpoint", "heun", "logrho"});  // all are bh2
  k.written("solver_type", "bh2");
  k.fixed("lower_order_final", true);
  k.fixed("disable_corrector", json::array());
  for (const char* key : {"solver_p", "sigma_min", "sigma_max", "shift_terminal"}) k.fixed(key, nullptr);
}

void flow_keys(FolderKeys& k, Values& v) {
  k.optional("num_train_timesteps", v.levels, 1000);
  k.optional("shift", v.shift, 1.0);
  k.optional("use_dynamic_shifting", v.dynamic, false);
  const std::vector<std::pair<const char*, json>> dynamic{{"base_shift", .5},
                                                          {"max_shift", 1.15},
                                                          {"base_image_seq_len", 256},
                                                          {"max_image_seq_len", 4096},
                                                          {"time_shift_type", "exponential"}};
  for (const auto& [key, value] : dynamic) {
    if (k.reads() && v.dynamic) k.only(key, value);  // no effect otherwise
    k.written(key, value);
  }
  for (const char* key :
       {"invert_sigmas", "use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "stochastic_sampling"})
    k.fixed(key, false);
  k.fixed("shift_terminal", nullptr);
}

struct SchedulerRow {
  const char* class_name;
  const char* sampler;
  void (*keys)(FolderKeys&, Values&);
};

const std::vector<SchedulerRow>& scheduler_rows() {
  static const std::vector<SchedulerRow> rows{
      {"DDPMScheduler", "ddpm", ddpm_keys},
      {"DDIMScheduler", "ddim", ddim_keys},
      {"PNDMScheduler", "pndm", pndm_keys},
      {"EulerDiscreteScheduler", "euler", euler_keys},
      {"EulerAncestralDiscreteScheduler", "euler-ancestral", euler_ancestral_keys},
      {"HeunDiscreteScheduler", "heun", heun_keys},
      {"DPMSolverMultistepScheduler", "dpm++2m", dpm_keys},
      {"UniPCMultistepScheduler", "unipc", unipc_keys},
      {"FlowMatchEulerDiscreteScheduler", "flow", flow_keys}};
  return rows;
}

bool is_flow(const SchedulerRow& row) { return row.keys == flow_keys; }

const SchedulerRow* row_of_class(const std::string& name) {
  for (const SchedulerRow& row : scheduler_rows())
    if (name == row.class_name) return &row;
  return nullptr;
}

const SchedulerRow& row_of_sampler(const std::string& name) {
  const std::string plain = name == kSdeSampler ? "dpm++2m" : name;
  for (const SchedulerRow& row : scheduler_rows())
    if (plain == row.sampler) return row;
  throw Error(kScheduler, concat("sampler must be one of ", join(noise::sampler_names()), ": got ", printable(name),
                                 did_you_mean(name, noise::sampler_names())));
}

/// Returns the class whose keys are read. A flow has no table of noise levels, so a sampler of the other kind changes
/// nothing here: noise::plan_sampler() refuses it.
const SchedulerRow& row_to_read(const std::string& class_name, const std::string& sampler) {
  const SchedulerRow* own = row_of_class(class_name);
  if (sampler.empty())
    require(own != nullptr, kScheduler, "_class_name of scheduler_config.json must be one of ", join(scheduler_names()),
            ": got ", printable(class_name), did_you_mean(class_name, scheduler_names()),
            "; name a sampler with --sampler to draw with another one");
  if (sampler.empty()) return *own;
  const SchedulerRow& wanted = row_of_sampler(sampler);
  return own && is_flow(*own) != is_flow(wanted) ? *own : wanted;
}

/// Refuses keys that no known class has. Those of other classes have no effect.
void check_keys(const json& config, const std::string& class_name) {
  json known{{"lambda_min_clipped", nullptr}};  // which is not written
  FolderKeys writer(known);
  for (const SchedulerRow& row : scheduler_rows()) {
    Values values;
    row.keys(writer, values);
  }
  std::vector<std::string> names;
  for (const auto& [key, value] : known.items()) names.push_back(key);
  for (const auto& [key, value] : config.items())
    require(key.starts_with('_') || known.contains(key), kScheduler, "keys of a ", class_name,
            " must be those of a scheduler that is known: got ", printable(key), " = ", printable(value.dump()),
            did_you_mean(key, names), "; remove the key if it does not change the pictures");
}

/// Changes the config as the constructors of diffusers' pipelines do.
void change_for(const std::string& pipeline, json& config) {
  const bool is_of_first = pipeline == "StableDiffusionPipeline" || pipeline == "StableDiffusionImg2ImgPipeline";
  if (!is_of_first && pipeline != "StableDiffusionInpaintPipeline") return;
  config["steps_offset"] = 1;
  config[pipeline == "StableDiffusionInpaintPipeline" ? "skip_prk_steps" : "clip_sample"] =
      pipeline == "StableDiffusionInpaintPipeline";
}

DiffusionKeys keys_of(const Values& v, bool of_flow) {
  DiffusionKeys keys;
  keys.steps = v.levels;
  if (of_flow) {
    keys.target = "flow";
    keys.shift = v.dynamic ? "auto" : shift_text(v.shift);
    return keys;
  }
  keys.target = v.prediction == "v_prediction" ? "v" : v.prediction;
  keys.zero_terminal_snr = v.zero_snr;
  keys.schedule = v.schedule == "squaredcos_cap_v2" ? "cosine" : v.schedule == "linear" ? "linear" : "scaled-linear";
  if (keys.schedule == "cosine") return keys;  // which has no betas
  keys.beta_start = v.beta_start;
  keys.beta_end = v.beta_end;
  return keys;
}

noise::SamplerOptions options_of(const Values& v, const DiffusionKeys& keys) {
  noise::SamplerOptions options{.karras = v.karras,
                                .set_alpha_to_one = v.alpha_to_one,
                                .ends_at_sigma_min = v.final_sigmas == "sigma_min",
                                .clip = v.clips ? v.clip_range : 0,
                                .variance = v.variance == "fixed_large"     ? noise::Variance::Large
                                            : v.variance == "learned_range" ? noise::Variance::Learned
                                                                            : noise::Variance::Small,
                                .shift = v.dynamic ? 1 : v.shift,
                                .target = keys.noise_target()};
  if (options.target == noise::Target::Flow) return options;
  options.spacing = v.spacing;
  options.steps_offset = v.offset;
  return options;
}

Values values_of(const SchedulerConfig& s) {
  const noise::SamplerOptions& o = s.sampler;
  Values v{.levels = s.keys.steps,
           .offset = o.steps_offset,
           .clip_range = o.clip > 0 ? o.clip : 1,
           .shift = s.keys.flow().shift,
           .spacing = o.spacing.empty() ? noise::default_spacing(o.sampler) : o.spacing,
           .final_sigmas = o.ends_at_sigma_min ? "sigma_min" : "zero",
           .algorithm = o.sampler == kSdeSampler ? kSde : "dpmsolver++",
           .variance = o.variance == noise::Variance::Large     ? "fixed_large"
                       : o.variance == noise::Variance::Learned ? "learned_range"
                                                                : "fixed_small",
           .clips = o.clip > 0,
           .zero_snr = s.keys.zero_terminal_snr,
           .alpha_to_one = o.set_alpha_to_one,
           .karras = o.karras,
           .dynamic = s.keys.shift == "auto"};
  if (s.keys.noise_target() == noise::Target::Flow) return v;
  const noise::NoiseLevels levels(s.keys.levels());
  const std::string& schedule = s.keys.schedule;
  v.schedule = schedule == "cosine" ? "squaredcos_cap_v2" : schedule == "linear" ? "linear" : "scaled_linear";
  v.prediction = s.keys.target == "v" ? "v_prediction" : s.keys.target;
  if (schedule == "cosine") return v;
  v.beta_start = levels.options().beta_start;
  v.beta_end = levels.options().beta_end;
  return v;
}

}  // namespace

std::string shift_text(double shift) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, shift).ptr};
}

std::vector<std::string> scheduler_names() {
  std::vector<std::string> names;
  for (const SchedulerRow& row : scheduler_rows()) names.emplace_back(row.class_name);
  return names;
}

SchedulerConfig read_scheduler(const json& config, const SchedulerUse& use) {
  const auto named = config.find("_class_name");
  const std::string class_name = named != config.end() && named->is_string() ? named->get<std::string>() : "";
  const SchedulerRow& row = row_to_read(class_name, use.sampler);
  if (row_of_class(class_name)) check_keys(config, class_name);
  json changed = config;
  change_for(use.pipeline, changed);
  if (!use.sampler.empty()) changed[kAlgorithm] = use.sampler == kSdeSampler ? kSde : "dpmsolver++";
  const models::FolderConfig reader(changed, row.class_name);
  FolderKeys keys(reader);
  Values values;
  row.keys(keys, values);
  SchedulerConfig read{.keys = keys_of(values, is_flow(row))};
  read.sampler = options_of(values, read.keys);
  if (is_flow(row) && use.pipeline == "FluxPipeline") read.sampler.spacing = "trailing";
  read.sampler.sampler = !use.sampler.empty() ? use.sampler : values.algorithm == kSde ? kSdeSampler : row.sampler;
  return read;
}

SchedulerConfig open_scheduler(const std::string& folder, const SchedulerUse& use) {
  if (const std::optional<checkpoint::LdmPart> part = checkpoint::ldm_part(folder))
    return read_scheduler(checkpoint::ldm_config(*part), use);
  const std::string path = folder + "/scheduler_config.json";
  std::string text = read_file(path, 1 << 20);
  const std::string key = "\"lambda_min_clipped\"";  // the one number of a scheduler that can be infinite
  if (const size_t at = text.find(key); at != std::string::npos) {
    const size_t value = text.find_first_not_of(" \t\r\n:", at + key.size());
    if (value != std::string::npos && text.compare(value, sizeof kInfinity - 1, kInfinity) == 0)
      text.replace(value, sizeof kInfinity - 1, "null");
  }
  return read_scheduler(parse_json_object(text, path, kScheduler), use);
}

json scheduler_json(const SchedulerConfig& scheduler) {
  require(scheduler.keys.noise_target() != noise::Target::Edm, "export",
          "no scheduler of diffusers draws with a model of this kind: got diffusion.target = \"edm\"; train with "
          "another target");
  const SchedulerRow& row = row_of_sampler(scheduler.sampler.sampler);
  json config{{"_class_name", row.class_name}, {"_diffusers_version", "0.42.1"}};
  FolderKeys keys(config);
  Values values = values_of(scheduler);
  row.keys(keys, values);
  return config;
}

}  // namespace colossal::run
