#include "colossal/run/config.h"

#include <sstream>

#include "colossal/base/bytes.h"
#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/memory/tiers/eviction.h"
#include "colossal/text/tokenizer.h"
#include "colossal/text/utf8.h"

namespace colossal::run {

void RunConfig::fields(Fields& f) {
  f.text("folder", folder, "run folder: resolved config, metrics.jsonl, TensorBoard events, report.html, checkpoints");
  f.choice("device", device, {"auto", "cpu", "cuda"}, "where tensors live; auto: cuda where there is one");
  f.choice("backend", backend, {"auto", "shm", "gloo", "nccl"},
           "transport between ranks; auto: nccl with a GPU a rank, shm on one host, else gloo");
  f.choice("matmul", matmul, {"auto", "mkl", "onednn"},
           "library of fp32 products on the CPU; auto: measured on rank 0");
  f.integer("timeout", timeout, "seconds",
            "a collective that waits longer ends the run and names the late rank; so does a start (a minute at most)",
            1, 86400);
  f.integer("stall_notice", stall_notice, "seconds",
            "a collective that waits longer is reported, with the late rank, and ends nothing", 1, 86400);
  f.flag("bind_cores", bind_cores, "give each local rank its own share of the cores");
}

void DataConfig::fields(Fields& f) {
  f.text("path", path,
         "text file, folder of text files, token file (.bin), JSON lines or Parquet (a .jsonl, .jsonl.gz, .jsonl.zst "
         "or .parquet, or a folder that holds some) or `builtin`: the project's own sources and docs; of a model of "
         "images a folder of pictures, a folder for each class, or that with CIFAR-10's binary files; of one that "
         "tells the class of a text a file with a text a line, `label<tab>text`, or JSON lines or Parquet");
  f.texts("sources", sources,
          "several sources of JSON lines or Parquet in place of path, each `name=path`; which records a run has of "
          "each follows from weights");
  f.numbers("weights", weights, "", "of the sources, in their order: how often each gives a record; none: all alike",
            0);
  f.texts("text_columns", text_columns,
          "of JSON lines: the members that hold text, which are one document with an empty line between two");
  f.text("label_column", label_column, "of JSON lines: the member that holds the class of the text");
  f.text("target_column", target_column,
         "of JSON lines for a model with an encoder: the member that holds the answer to the text");
  f.bytes("shuffle_bytes", shuffle_bytes,
          "of JSON lines: lines of each source that are held in memory and read in another order; 0: as they stand");
  f.bytes("longest_line", longest_line, "of JSON lines: longer ones are a fault", 2, int64_t{1} << 32);
  f.choice("faults", faults, {"refuse", "skip"},
           "of JSON lines and pictures: whether a line, the rest of a damaged file or a picture that cannot be read "
           "ends the run or is passed over, with a warning");
  f.integer("threads", threads, "", "of JSON lines and pictures: those that read them ahead of training", 1, 1024);
  f.text("tokenizer", tokenizer,
         "of text: `bytes`, a Hugging Face folder, or a file of a tokenizer (tokenizer.json, SentencePiece, tiktoken); "
         "`auto`: that of model.from where it has one, else bytes");
  f.integer("sequence", sequence, "tokens", "length of a sample of text", 1, 1 << 24);
  f.choice("documents", documents, {"separate", "joined"}, "whether attention and prediction stop at document borders");
  f.number("held_out", held_out, "of the data",
           "text kept for the evaluation loss; images have a test set of their own", 0, 0.9);
  f.number("masked", masked, "of the tokens",
           "of models that fill in hidden tokens: those of each sample that they are asked for, one at least", 0, 1);
  f.number("masked_random", masked_random, "of masked", "that are shown as a random token instead of the mask", 0, 1);
  f.number("masked_kept", masked_kept, "of masked", "that are shown as they are", 0, 1);
  f.number(
      "noise_density", noise_density, "of the tokens",
      "of a model with an encoder: plain text in path, of which so many tokens are hidden in spans, and the answer "
      "says what they were (T5: 0.15); 0: path holds pairs of texts",
      0, 0.9);
  f.number("mean_span", mean_span, "tokens", "with noise_density: mean length of a hidden span", 1, 1 << 16);
  f.flag("augment", augment,
         "training images are mirrored at random and shifted, or of a folder of pictures cut out at random");
  f.numbers("image_mean", image_mean, "", "of pictures in a folder: of red, green and blue, from 0 to 1", 0, 1);
  f.numbers("image_deviation", image_deviation, "",
            "of pictures in a folder: what they are divided by, so that they "
            "have variance 1",
            1e-6);
  f.number("least_area", least_area, "of the picture", "what augment shows of pictures in a folder, at least", 1e-3, 1);
}

std::string Config::tokenizer() const {
  if (data.tokenizer != "auto") return data.tokenizer;
  return !model.from.empty() && text::has_tokenizer(model.from) ? model.from : "bytes";
}

void PrecisionConfig::fields(Fields& f) {
  f.choice("mode", mode, {"fp32", "fp64", "bf16", "fp16", "fp8"},
           "dtype of parameters, activations and gradients; fp8: bf16, but linear layers multiply 8-bit numbers. "
           "Norms, softmax statistics, losses and sums over ranks have fp32 at least");
  f.flag("masters", masters, "bf16, fp16, fp8: the optimizer updates fp32 copies of the parameters");
  f.number("loss_scale", loss_scale, "",
           "fp16: what the loss is multiplied by at first, so that small gradients do not vanish; halved where "
           "gradients overflow. 0: no scaling",
           0, 1e30);
  f.integer("loss_scale_growth", loss_scale_growth, "steps", "fp16: without an overflow before the scale is doubled",
            1);
  fp8.fields(f);
}

at::ScalarType PrecisionConfig::dtype() const {
  return mode == "fp64"                    ? at::kDouble
         : mode == "bf16" || mode == "fp8" ? at::kBFloat16
         : mode == "fp16"                  ? at::kHalf
                                           : at::kFloat;
}

bool PrecisionConfig::has_masters() const { return masters && (mode == "bf16" || mode == "fp16" || mode == "fp8"); }

void MemoryConfig::fields(Fields& f) {
  f.choice("recompute", recompute, {"none", "selective", "block"},
           "activations computed again in backward instead of kept: none, those inside each mlp, or all but each "
           "block's input");
  f.bytes("device", device,
          "memory of each rank's device for a step: activations, and as many whole parameters as fit beside them; the "
          "rest is in host memory. On the CPU the device is that much of host memory. 0: as much as it has");
  f.number("states_on_device", states_on_device, "",
           "with device and placement = static: share of the parameters whose masters, gradients and states lie there "
           "and are updated there; other placements find out how many",
           0, 1);
  f.bytes("host", host,
          "host memory of this machine for parameters, gradients and states while nobody works with them, its ranks "
          "together. 0: with disk as little as transfers need, with device alone as much as there is, else they stay "
          "where they are");
  f.text("disk", disk,
         "folder for what does not fit into host; nothing stays there when the run is over. Without: what does not fit "
         "is refused");
  f.choice("placement", placement, memory::eviction_names(),
           "which of them leaves host memory for the disk, and which parameters the device: the one used again last, "
           "by the order of the step before, the one used longest ago, or the one that came last");
}

void TrainingConfig::fields(Fields& f) {
  f.integer("steps", steps, "steps", "optimizer steps of the whole run", 1);
  f.integer("batch_size", batch_size, "samples", "global batch of a step, all replicas and micro-batches", 1);
  f.integer("accumulate", accumulate, "micro-batches",
            "parts that each replica's share is computed in, one after another", 1);
  f.number("clip", clip, "", "largest gradient, in what clip_by says; 0: no clipping", 0);
  f.choice("clip_by", clip_by, {"norm", "largest", "value"},
           "what clip bounds: the L2 norm of the whole gradient, its largest magnitude (both scale the whole), or each "
           "element (cut off by itself)");
  f.flag("graph", graph,
         "on GPUs: forward and backward of a micro-batch are recorded once and replayed, which saves the launches that "
         "small models wait for; for models without dropout, data parallel with parallel.zero 0 or 1. Batches with "
         "several documents in a row run as without");
  f.integer("seed", seed, "", "of initial weights, data order and dropout");
  f.integer("save_every", save_every, "steps", "between checkpoints; 0: at the end only");
  f.integer("keep_last", keep_last, "checkpoints", "older ones are removed; 0: none are");
  f.integer("evaluate_every", evaluate_every, "steps", "between evaluations on held-out data; 0: at the end only");
  f.integer("evaluate_batches", evaluate_batches, "batches",
            "of batch_size samples in one evaluation, at most all that are held out, each once; 0: no evaluation");
  f.text("sample_prompt", sample_prompt, "start of the sampled texts");
  f.integer("sample_tokens", sample_tokens, "tokens",
            "length of a sampled text, which stops where data.sequence ends; 0: no samples");
  f.integer("sample_every", sample_every, "steps",
            "between samples, which the report shows over time; 0: one at the end only");
}

void Config::fields(Fields& f) {
  f.section("run", run, "where and on what");
  f.section("model", model,
            "the model; `colossal models` lists presets, and the keys that its architecture has beside these");
  f.section("data", data, "what it reads");
  f.section("parallel", parallel, "how it is spread over ranks; their number is the product of all sizes");
  f.section("precision", precision, "number formats");
  f.section("memory", memory, "what is kept");
  f.section("optimizer", optimizer, "how weights are updated");
  f.section("training", training, "the run");
}

int64_t Config::micro_batches() const {
  if (parallel.pipeline.size == 1) return training.accumulate;
  require(training.accumulate == 1, "training",
          "accumulate must be 1 with a pipeline, whose micro-batches accumulate already: got ", training.accumulate,
          "; set parallel.pipeline.micro_batches");
  return parallel::micro_batches_of(parallel.pipeline, training.batch_size / parallel.data,
                                    parallel::batch_parts(parallel.tensor));
}

namespace {

/// What a recording would hold for good.
void check_graph(const Config& config) {
  if (!config.training.graph) return;
  const auto& parallel = config.parallel;
  require(!config.memory.has_tiers(), "training",
          "graph needs parameters and gradients that stay where they are: got [memory] device, host or disk; set "
          "training.graph = false");
  require(parallel.zero <= 1, "training",
          "graph needs parallel.zero 0 or 1, where parameters and gradients stay where they are: got ", parallel.zero,
          "; set training.graph = false");
  require(parallel.ranks() == parallel.data, "training",
          "graph needs ranks that are all replicas: those of pipelines, tensor and sequence parallelism send to one "
          "another while they compute; got ",
          parallel.ranks(), " ranks, parallel.data = ", parallel.data, "; set training.graph = false");
}

/// What the budget of the device does not go with.
void check_device(const Config& config) {
  require(config.memory.states_on_device == 0 || (config.memory.device > 0 && config.memory.placement == "static"),
          "memory", "states_on_device is for device with placement = \"static\": got ", config.memory.states_on_device,
          " with device = \"", print_bytes(config.memory.device), "\", placement = \"", config.memory.placement,
          "\", which finds out by itself; leave it out");
  if (config.memory.device == 0) return;
  const auto& parallel = config.parallel;
  require(parallel.zero == 0 || parallel.zero == 3, "memory",
          "device bounds parameters that come and go, which are whole for good with parallel.zero = ", parallel.zero,
          "; set parallel.zero = 3 or leave memory.device out");
  require(parallel.reshard_after_forward, "memory",
          "device says how many parameters stay: got parallel.reshard_after_forward = false beside it; leave one out");
  require(parallel.gathered_mib == 0, "memory",
          "device says how many parameters are whole at once: got parallel.gathered_mib = ", parallel.gathered_mib,
          " beside it; leave one out");
}

}  // namespace

namespace {

/// The config is kept as TOML in the run folder and as JSON in checkpoints. Both are UTF-8.
void check_utf8(const Config& config) {
  std::string section;
  std::istringstream lines(to_toml(config));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("[")) section = line;
    require(text::is_utf8(line), "config", "values must be UTF-8: got ", printable(line), " in ", section,
            "; rename the file, for instance with convmv");
  }
}

}  // namespace

void Config::validate() const {
  check_utf8(*this);
  const int64_t shares = parallel::batch_parts(parallel.tensor), parts = parallel.data * training.accumulate * shares;
  const int64_t below = training.batch_size / parts * parts;
  require(training.batch_size % parts == 0, "training", "batch_size must divide by parallel.data * training.accumulate",
          shares > 1 ? concat(" * the ", shares, " parts of mode ", parallel.tensor.mode) : "", ": got ",
          training.batch_size, ", ", parallel.data, " * ", training.accumulate, shares > 1 ? concat(" * ", shares) : "",
          "; the nearest are ", below > 0 ? concat(below, " and ") : "", below + parts);
  parallel::check_sizes(parallel.tensor, 0, 0, data.sequence);
  parallel::check_sequence(parallel.sequence, data.sequence, parallel::sequence_parts(parallel.tensor));
  optim::check_optimizer(optimizer);
  optim::check_learning_rate(optimizer, training.steps, training.batch_size);
  require(parallel.zero_sharers == 0 ||
              (parallel.zero_sharers <= parallel.copies() && parallel.copies() % parallel.zero_sharers == 0),
          "parallel", "zero_sharers must divide data * sequence.size: got ", parallel.zero_sharers, " of ",
          parallel.copies(), " replicas; set it to 0 to share among all");
  const bool parameters_go = parallel.zero == 3 || (parallel.zero == 0 && memory.has_tiers());
  require(parallel.gathered_mib == 0 || (parameters_go && parallel.reshard_after_forward), "parallel",
          "gathered_mib is for zero = 3 with reshard_after_forward, or zero = 0 with tiers of [memory], where "
          "parameters go: got ",
          parallel.gathered_mib, " with zero = ", parallel.zero,
          parallel.reshard_after_forward ? "" : ", reshard_after_forward = false", "; leave it out");
  require(data.masked_random + data.masked_kept <= 1, "data",
          "masked_random and masked_kept are shares of the masked tokens, at most 1 together: got ", data.masked_random,
          " and ", data.masked_kept);
  require(precision.mode != "fp16" || precision.masters, "precision",
          "mode fp16 needs masters: updates below 1/2048 of a weight would be lost, "
          "and its range is too short for masterless training; set precision.masters = true or mode = \"bf16\"");
  parallel::PipelineConfig pipeline = parallel.pipeline;
  pipeline.micro_batches = micro_batches();
  parallel::check_sizes(pipeline);
  check_graph(*this);
  check_device(*this);
}

GivenConfig read_given_config(const std::string& path, const std::vector<std::string>& flags) {
  const ConfigDocument file = path.empty() ? ConfigDocument() : ConfigDocument::load(path);
  ConfigDocument document = file, on_top;
  for (const std::string& flag : flags) {
    document.set(flag);
    on_top.set(flag);
  }
  GivenConfig given;
  document.read(given.config);
  const int64_t steps = given.config.training.steps;
  int64_t& warmup = given.config.optimizer.warmup_steps;
  constexpr char kWarmup[] = "optimizer.warmup_steps";
  const bool is_wanted = on_top.text(kWarmup) || (file.text(kWarmup) && !on_top.text("training.steps"));
  if (warmup <= steps || is_wanted) return given;
  given.notices.push_back(concat(kWarmup, " = ", warmup, " is more than the ", steps,
                                 " steps of this run: the warm-up is shortened to ", steps / 10, "; --", kWarmup, "=",
                                 steps / 10, " says the same"));
  warmup = steps / 10;
  return given;
}

}  // namespace colossal::run
