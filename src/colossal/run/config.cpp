#include "colossal/run/config.h"

#include <sstream>

#include "colossal/base/bytes.h"
#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/memory/tiers/eviction_policy.h"
#include "colossal/run/layout_keys.h"
#include "colossal/run/stored_config.h"
#include "colossal/run/unused_keys.h"
#include "colossal/text/tokenizer.h"
#include "colossal/text/unicode.h"

namespace colossal::run {

void RunConfig::fields(Fields& f) {
  f.text("folder", folder,
         "run folder: holds the resolved config, metrics.jsonl, TensorBoard events, report.html and checkpoints");
  f.choice("device", device, {"auto", "cpu", "cuda"},
           "device that stores tensors; auto = cuda if there is one, else cpu");
  f.choice("backend", backend, {"auto", "shm", "gloo", "nccl"},
           "transport between ranks; auto = nccl with one GPU per rank, shm on a single host, else gloo");
  f.choice("matmul", matmul, {"auto", "mkl", "onednn"},
           "library for fp32 matrix products on the CPU; auto = the faster one, measured on rank 0");
  f.integer("timeout", timeout, "seconds",
            "time limit of a collective; after it the run ends and reports the late rank. The start of a run has the "
            "same limit, but at most 60 s",
            1, 86400);
  f.integer("stall_notice", stall_notice, "seconds",
            "time after which a waiting collective is reported, with the late rank; the run continues", 1, 86400);
  f.flag("bind_cores", bind_cores, "bind each local rank to a separate set of cores");
}

void DataConfig::common_fields(Fields& f) {
  f.text("path", path,
         "training data. Text models: text file, folder of text files, token file (.bin), JSON lines, Parquet "
         "or FASTA (.jsonl, .jsonl.gz, .jsonl.zst, .parquet, .fasta, .fasta.gz, or a folder of them) or `builtin` = "
         "5.5 MB of the project's "
         "sources. Image models: folder with a subfolder of images per class, folder with CIFAR-10's binary files, or "
         "`builtin-shapes` or `builtin-shapes:N` = 10,000 or N drawn shapes an epoch. Folding models: folder of "
         "structures, or `builtin-folds` = drawn helices and strands. "
         "Text classifiers: file with one `label<tab>text` per line, JSON lines or Parquet");
  f.texts(
      "text_columns", text_columns,
      "members that hold text (JSON lines, Parquet); several are joined into one document, separated by an empty line");
  f.previously("longest_line")
      .bytes("max_line_bytes", max_line_bytes,
             "maximum length of a line (JSON lines); a longer line is handled as on_error says", 2, int64_t{1} << 32);
  f.previously("faults").choice(
      "on_error", on_error, {"refuse", "skip"},
      "action for an unreadable line, image or rest of a damaged file: refuse = end the run, skip = continue with "
      "a warning");
  f.integer("threads", threads, "", "threads that prefetch JSON lines, Parquet and images", 1, 1024);
  f.text("tokenizer", tokenizer,
         "tokenizer of text: `bytes`, a Hugging Face folder, or a tokenizer file (tokenizer.json, SentencePiece, "
         "tiktoken); `auto` = the tokenizer of model.from if it has one, else bytes");
  f.integer("sequence", sequence, "tokens", "length of a text sample", 1, 1 << 24);
  f.choice("documents", documents, {"separate", "joined"},
           "attention and prediction across document borders: separate = masked, joined = allowed");
  f.number("held_out", held_out, "of the data",
           "share of the text held out for the evaluation loss; image data has a separate test set", 0, 0.9);
}

void DataConfig::fields(Fields& f) {
  common_fields(f);
  f.rest(own);
}

std::string Config::tokenizer() const {
  if (data.tokenizer != "auto") return data.tokenizer;
  if (!model.from.empty() && is_run(model.from)) return stored_config(model.from).tokenizer();
  return !model.from.empty() && text::has_tokenizer(model.from) ? model.from : "bytes";
}

void PrecisionConfig::fields(Fields& f) {
  f.choice("mode", mode, {"fp32", "fp64", "bf16", "fp16", "fp8"},
           "dtype of parameters, activations and gradients; fp8 = bf16 with 8-bit inputs to the matrix products of "
           "linear layers. Norms, softmax statistics, losses and sums over ranks use fp32 or more");
  f.flag("masters", masters,
         "fp32 master weights, which the optimizer updates instead of the parameters (bf16, fp16, fp8)");
  f.number("loss_scale", loss_scale, "",
           "initial loss scale, which keeps small gradients from underflowing (fp16); halved after an overflow; 0 = no "
           "scaling",
           0, 1e30);
  f.integer("loss_scale_growth", loss_scale_growth, "steps",
            "steps without an overflow before the loss scale is doubled (fp16)", 1);
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
  f.choice("recompute", recompute, {"none", "selective", "block", "auto"},
           "activations recomputed in backward instead of stored: none, selective = those inside each mlp, block = all "
           "but each block's input, auto = as few as the memory allows, chosen for each block");
  f.bytes("activations", activations,
          "memory of each rank for activations, into which recompute = auto fits a step; 0 = what parameters, "
          "gradients and states leave of device, or without it of 90 % of the device's memory");
  f.bytes("device", device,
          "device memory of each rank for a step: activations, then as many whole parameters as fit; the rest is in "
          "host memory. On the CPU the device is a part of host memory. 0 = all device memory");
  f.number("states_on_device", states_on_device, "",
           "share of the parameters whose master weights, gradients and optimizer states are stored and updated on the "
           "device; needs device and placement = static. Other placements choose the share themselves",
           0, 1);
  f.bytes(
      "host", host,
      "host memory for parameters, gradients and optimizer states that are not in use, for all ranks of this machine. "
      "0 = what transfers need (with disk), all there is (with device alone), nothing is moved (with neither)");
  f.text("disk", disk,
         "folder for tensors that do not fit into host, emptied when the run ends; empty = off: tensors that do not "
         "fit are an error");
  f.choice("placement", placement, memory::eviction_policy_names(),
           "eviction policy, from host memory to disk and for parameters on the device: auto = next use is furthest "
           "away, as recorded in the step before; lru = least recently used; static = newest");
}

void TrainingConfig::fields(Fields& f) {
  f.integer("steps", steps, "steps", "number of optimizer steps of the whole run", 1);
  f.integer("batch_size", batch_size, "samples", "global batch size of a step, over all replicas and micro-batches", 1);
  f.integer("accumulate", accumulate, "micro-batches",
            "gradient accumulation: number of micro-batches that each replica computes one after another", 1);
  f.number("clip", clip, "", "gradient clipping threshold, in the measure that clip_by names; 0 = no clipping", 0);
  f.choice("clip_by", clip_by, {"norm", "largest", "value"},
           "measure that clip bounds: norm = L2 norm of the whole gradient, largest = its largest magnitude (both "
           "scale the whole gradient), value = each element (clamped separately)");
  f.choice(
      "parameters", parameters, {"all", "embeddings", "new-rows"},
      "what the run trains: all = the whole model, embeddings = the tables with a row per token (embedding, head and "
      "its bias), new-rows = the rows of these tables that `colossal expand` added to the folder of model.from. "
      "Everything else keeps its values to the bit");
  f.number("ema", ema, "",
           "decay of the average of the weights of any model, such as 0.9999 (after the first steps); 0 = no average. "
           "Commands that read the run use the average, unless --no-ema is given",
           0, 0.999999);
  f.previously("graph").flag(
      "cuda_graph", cuda_graph,
      "CUDA graphs: forward and backward of a micro-batch are recorded once and replayed, which saves kernel "
      "launches of small models. Needs a dense model without dropout and data parallelism with parallel.zero 0 or 1. "
      "Batches with several documents in a row run without a graph");
  f.integer("seed", seed, "", "random seed of initial weights, data order and dropout");
  f.integer("save_every", save_every, "steps", "interval between checkpoints; 0 = only at the end");
  f.integer("keep_last", keep_last, "checkpoints",
            "number of checkpoints to keep; older ones are deleted; 0 = keep all");
  f.integer("evaluate_every", evaluate_every, "steps",
            "interval between evaluations on held-out data; 0 = only at the end");
  f.integer("evaluate_batches", evaluate_batches, "batches",
            "number of batches (of batch_size samples) per evaluation, limited to one pass over the held-out data; 0 = "
            "no evaluation");
  f.texts("tasks", tasks,
          "tasks that each evaluation runs, as `colossal evaluate --tasks` names them: files that end in .toml, or "
          "built-in tasks; empty = none");
  f.text("tasks_data", tasks_data, "folder of the files of tasks; empty = that of a task's own file");
  f.text("sample_prompt", sample_prompt, "prompt of the sampled texts");
  f.integer("sample_tokens", sample_tokens, "tokens",
            "number of tokens to sample, limited by data.sequence; 0 = no samples");
  f.integer("sample_every", sample_every, "steps",
            "interval between samples, which the report shows over time; 0 = one sample at the end");
}

void Config::fields(Fields& f) {
  common_fields(f);
  f.rest(tables);
}

void Config::common_fields(Fields& f) {
  f.section("run", run, "run folder, device, transport and timeouts");
  f.section("model", model,
            "model architecture and sizes; `colossal models` lists presets and the further keys of each architecture");
  f.section("data", data, "training data");
  f.section("parallel", parallel, "parallel layout; the number of ranks is the product of all sizes");
  f.section("precision", precision, "number formats");
  f.section("memory", memory, "memory budgets, offloading and recomputation");
  f.section("optimizer", optimizer, "optimizer and learning rate");
  f.section("training", training, "steps, batches, checkpoints, evaluation and samples");
}

int64_t Config::micro_batches() const {
  if (parallel.pipeline.size == 1) return training.accumulate;
  require(training.accumulate == 1, "training",
          "accumulate must be 1 with a pipeline, whose micro-batches accumulate already: got ", training.accumulate,
          "; set parallel.pipeline.micro_batches");
  return parallel::micro_batches_of(parallel.pipeline, training.batch_size / parallel.replicas(),
                                    parallel::batch_parts(parallel.tensor));
}

tensor::ReplicaRows Config::replica_rows(int64_t replica) const {
  return {.batch_size = training.batch_size,
          .micro_batches = micro_batches(),
          .replica = replica,
          .replicas = parallel.replicas()};
}

namespace {

/// Refuses graphs with settings that move parameters or gradients, or communicate during a pass: a recording keeps
/// fixed addresses.
void check_cuda_graph(const Config& config) {
  if (!config.training.cuda_graph) return;
  const auto& parallel = config.parallel;
  require(!config.memory.has_tiers(), "training",
          "cuda_graph needs parameters and gradients at fixed addresses: got [memory] device, host or disk; set "
          "training.cuda_graph = false");
  require(parallel.zero <= 1, "training",
          "cuda_graph needs parallel.zero 0 or 1, which keep parameters and gradients at fixed addresses: got ",
          parallel.zero, "; set training.cuda_graph = false");
  require(parallel.ranks() == parallel.data, "training",
          "cuda_graph needs data parallelism only, because ranks of pipeline, expert, tensor and sequence parallelism "
          "communicate during a pass: got ",
          parallel.ranks(), " ranks, parallel.data = ", parallel.data, "; set training.cuda_graph = false");
}

/// Refuses settings that do not work together with memory.device, and a budget of activations that nothing reads.
void check_device(const Config& config) {
  require(config.memory.activations == 0 || config.memory.recompute == "auto", "memory",
          "activations is the budget of recompute = \"auto\": got activations = \"",
          print_bytes(config.memory.activations), "\" with recompute = \"", config.memory.recompute,
          "\"; set memory.recompute = \"auto\" or leave activations out");
  require(config.memory.states_on_device == 0 || (config.memory.device > 0 && config.memory.placement == "static"),
          "memory",
          "states_on_device needs device and placement = \"static\", because other placements choose the share "
          "themselves: got ",
          config.memory.states_on_device, " with device = \"", print_bytes(config.memory.device), "\", placement = \"",
          config.memory.placement, "\"; leave it out");
  if (config.memory.device == 0) return;
  const auto& parallel = config.parallel;
  require(parallel.zero == 0 || parallel.zero == 3, "memory",
          "device needs parallel.zero = 0 or 3, which release parameters after use: got parallel.zero = ",
          parallel.zero, "; set parallel.zero = 3 or leave memory.device out");
  require(parallel.reshard_after_forward, "memory",
          "device already limits resident parameters: got parallel.reshard_after_forward = false in addition; leave "
          "one out");
  require(parallel.max_gathered_mib == 0, "memory",
          "device already limits the parameters that are whole at once: got parallel.max_gathered_mib = ",
          parallel.max_gathered_mib, " in addition; leave one out");
}

}  // namespace

namespace {

/// Requires UTF-8, because the config is saved as TOML in the run folder and as JSON in checkpoints.
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
  check_auto(*this);
  require(parallel.plan.empty(), "parallel",
          "plan is for modules that colossal::auto_parallel trains, not for this library's models or "
          "colossal::initialize: got ",
          parallel.plan, "; leave it out");
  const int64_t shares = parallel::batch_parts(parallel.tensor);
  const int64_t parts = parallel.replicas() * training.accumulate * shares;
  const int64_t below = training.batch_size / parts * parts;
  const bool has_experts = parallel.expert.size > 1;
  require(training.batch_size % parts == 0, "training", "batch_size must be divisible by parallel.data * ",
          has_experts ? "parallel.expert.size * " : "", "training.accumulate",
          shares > 1 ? concat(" * the ", shares, " parts of mode ", parallel.tensor.mode) : "", ": got ",
          training.batch_size, ", ", parallel.data, has_experts ? concat(" * ", parallel.expert.size) : "", " * ",
          training.accumulate, shares > 1 ? concat(" * ", shares) : "", "; the nearest ",
          below > 0 ? concat("are ", below, " and ") : "is ", below + parts);
  parallel::check_sizes(parallel.tensor, 0, 0);
  parallel::check_expert_tensor(parallel.expert, parallel.tensor);
  parallel::check_expert_node(parallel.expert, parallel.tensor);
  parallel::sequence_axes(parallel.sequence);
  optim::check_optimizer(optimizer);
  optim::check_learning_rate(optimizer, training.steps, training.batch_size);
  // Experts have the fewest replicas; a divisor of their number divides the replicas of other parameters, too.
  require(parallel.zero_group == 0 || parallel.expert_copies() % parallel.zero_group == 0, "parallel",
          "zero_group must divide data * sequence.size: got ", parallel.zero_group, " of ", parallel.expert_copies(),
          has_experts ? " replicas of each expert" : " replicas", "; set it to 0 to shard over all");
  const bool parameters_go = parallel.zero == 3 || (parallel.zero == 0 && memory.has_tiers());
  require(
      parallel.max_gathered_mib == 0 || (parameters_go && parallel.reshard_after_forward), "parallel",
      "max_gathered_mib needs zero = 3 with reshard_after_forward, or zero = 0 with tiers of [memory], which release "
      "parameters: got ",
      parallel.max_gathered_mib, " with zero = ", parallel.zero,
      parallel.reshard_after_forward ? "" : ", reshard_after_forward = false", "; leave it out");
  require(precision.mode != "fp16" || precision.masters, "precision",
          "mode fp16 needs master weights: updates below 1/2048 of a weight would be lost, and its range is too short "
          "for training without them; set precision.masters = true or mode = \"bf16\"");
  parallel::PipelineConfig pipeline = parallel.pipeline;
  pipeline.micro_batches = micro_batches();
  parallel::check_sizes(pipeline);
  check_cuda_graph(*this);
  check_device(*this);
  check_unused_keys(precision);
  require(training.tasks_data.empty() || !training.tasks.empty(), "training",
          "tasks_data needs training.tasks, without which it has no effect: got \"", training.tasks_data,
          "\"; leave it out, or name tasks");
}

GivenConfig read_given_config(const std::string& path, const std::vector<std::string>& flags) {
  ConfigDocument on_top;
  for (const std::string& flag : flags) on_top.set(flag);
  return read_given_config(path.empty() ? ConfigDocument() : ConfigDocument::load(path), on_top);
}

GivenConfig read_given_config(const ConfigDocument& file, const ConfigDocument& on_top) {
  ConfigDocument document = file;
  for (const auto& [key, value] : on_top.values()) document.put(key, value);
  GivenConfig given;
  given.notices = document.read(given.config);
  const int64_t steps = given.config.training.steps;
  int64_t& warmup = given.config.optimizer.warmup_steps;
  constexpr char kWarmup[] = "optimizer.warmup_steps";
  const bool is_wanted = on_top.text(kWarmup) || (file.text(kWarmup) && !on_top.text("training.steps"));
  if (warmup <= steps || is_wanted) return given;
  given.notices.push_back(concat(kWarmup, " = ", warmup, " is more than the ", steps,
                                 " steps of this run: the warm-up is shortened to ", steps / 10, "; --", kWarmup, "=",
                                 steps / 10, " silences this notice"));
  warmup = steps / 10;
  return given;
}

}  // namespace colossal::run
