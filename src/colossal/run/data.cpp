#include "colossal/run/data.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/comm/launch/device.h"
#include "colossal/data/cifar.h"
#include "colossal/data/corpus.h"
#include "colossal/data/labelled_texts.h"
#include "colossal/data/masked_samples.h"
#include "colossal/data/text_samples.h"

namespace colossal::run {
namespace {

struct Parts {
  std::shared_ptr<const data::Samples> training, held_out;
  std::vector<std::string> class_names{};
};

bool evaluates(const Config& config) { return config.training.evaluate_batches > 0; }

/// Ids that a model of `task` reads: the tokenizer's, and where that has none the one behind them for hidden tokens.
int64_t ids_of(const models::Task& task, const text::Tokenizer& tokenizer) {
  const bool adds_mask = task.objective == models::Objective::MaskedToken && tokenizer.mask_id() < 0;
  return tokenizer.vocabulary_size() + (adds_mask ? 1 : 0);
}

std::shared_ptr<const data::Samples> samples_of(const data::Corpus& corpus, const DataConfig& d,
                                                const models::Task& task, const text::Tokenizer& tokenizer) {
  const auto documents = d.documents == "joined" ? data::Documents::Joined : data::Documents::Separate;
  if (task.objective == models::Objective::NextToken)
    return std::make_shared<data::TextSamples>(corpus, d.sequence, documents);
  const int64_t words = tokenizer.vocabulary_size(), mask = tokenizer.mask_id();
  return std::make_shared<data::MaskedSamples>(corpus, d.sequence, documents,
                                               data::Masking{.share = d.masked,
                                                             .random = d.masked_random,
                                                             .kept = d.masked_kept,
                                                             .mask_id = mask < 0 ? words : mask,
                                                             .vocabulary = words});
}

Parts open_corpus(const Config& config, const models::Task& task, const text::Tokenizer& tokenizer,
                  const std::string& builtin) {
  const DataConfig& d = config.data;
  std::error_code none;
  require(
      d.path != "builtin" || std::filesystem::is_directory(builtin, none), "data",
      "data.path = \"builtin\" is the text of the sources that this program was built from, but they are no longer at ",
      builtin, "; name a text file or a folder with --data.path=PATH");
  const auto corpus = data::Corpus::open(d.path == "builtin" ? builtin : d.path, tokenizer, {config.run.folder});
  auto [training, held_out] = corpus.split(d.held_out);
  Parts parts{samples_of(training, d, task, tokenizer), {}};
  if (!evaluates(config) || d.held_out == 0) return parts;
  require(held_out.size() > d.sequence, "data", "the held-out part must hold a sequence: got ", held_out.size(),
          " tokens of ", corpus.size(), ", sequence ", d.sequence,
          "; raise data.held_out, lower data.sequence, or set training.evaluate_batches = 0");
  parts.held_out = samples_of(held_out, d, task, tokenizer);
  return parts;
}

Parts open_labelled(const Config& config, const models::Task& task, const text::Tokenizer& tokenizer) {
  const DataConfig& d = config.data;
  require(d.path != "builtin", "data", "a model that ", task.purpose(),
          " reads labelled texts: name a file of lines `label<tab>text`, or a .jsonl, with --data.path=PATH");
  require(d.documents == "separate", "data",
          "documents must be separate for labelled texts, or texts attend to what fills them up: got ", d.documents);
  data::LabelledTexts all = data::read_labelled_texts(d.path);
  if (!task.class_names.empty()) all.number_as(task.class_names);
  const bool has_names = !all.names.empty();
  require(all.classes <= task.classes, "model", "classes must hold those of the texts: got ", task.classes, ", ",
          d.path, " has ", all.classes, "; set model.classes");
  const std::set<std::string> taken(all.names.begin(), all.names.end());
  for (int64_t i = all.classes; has_names && i < task.classes; ++i) {
    all.names.push_back(concat("LABEL_", i));
    require(!taken.contains(all.names.back()), "data", "a class that no text has would be called ", all.names.back(),
            ", as another one is in ", d.path, "; set model.class_names, or model.classes=", all.classes);
  }
  const auto [training, held_out] = all.split(d.held_out);
  Parts parts{std::make_shared<data::LabelledSamples>(training, tokenizer, d.sequence), {}, all.names};
  if (evaluates(config) && d.held_out > 0)
    parts.held_out = std::make_shared<data::LabelledSamples>(held_out, tokenizer, d.sequence);
  return parts;
}

Parts open_text(const Config& config, const models::ModelShape& shape, const text::Tokenizer& tokenizer,
                const std::string& builtin) {
  const DataConfig& d = config.data;
  const models::Task task = shape.task();
  const int64_t ids = ids_of(task, tokenizer);
  require(
      ids <= shape.vocabulary, "model", "the vocabulary must hold the tokenizer's: got ", shape.vocabulary,
      ", tokenizer ", tokenizer.vocabulary_size(),
      ids > tokenizer.vocabulary_size() ? " and one for hidden tokens" : "",
      config.model.from.empty() ? "; set model.vocabulary" : "; set data.tokenizer to the one of that folder's model");
  require(d.sequence <= shape.positions, "data", "sequence must not exceed the model's positions: got ", d.sequence,
          " of ", shape.positions, "; lower data.sequence or raise model.positions");
  return task.objective == models::Objective::Class ? open_labelled(config, task, tokenizer)
                                                    : open_corpus(config, task, tokenizer, builtin);
}

Parts open_images(const Config& config, const models::ModelShape& shape) {
  const models::Task task = shape.task();
  const auto read = [&](data::CifarPart part) {
    data::ImageSet set = data::read_cifar(config.data.path, part);
    require(set.classes <= task.classes, "model", "classes must hold those of the images: got ", task.classes,
            ", images of ", set.classes, "; set model.classes");
    require(set.pixels.size(1) == task.channels && set.pixels.size(2) == task.side, "model",
            "channels and side must be those of the images: got ", task.channels, " and ", task.side, ", images have ",
            set.pixels.size(1), " and ", set.pixels.size(2), "; set model.channels and model.side");
    return set;
  };
  Parts parts{std::make_shared<data::ImageSamples>(read(data::CifarPart::Training), config.data.augment), {}};
  if (evaluates(config)) parts.held_out = std::make_shared<data::ImageSamples>(read(data::CifarPart::Test), false);
  return parts;
}

/// Gives the model the names that the classes have in the data, if it can keep them and has none.
void learn_class_names(const std::vector<std::string>& names, const Config& config, const models::Registry& registry,
                       RunData& run) {
  constexpr const char* kKey = "class_names";
  const std::vector<KeyHelp> keys = describe_config(run.shape.own);
  const bool keeps = std::any_of(keys.begin(), keys.end(), [](const KeyHelp& key) { return key.key == kKey; });
  if (names.empty() || !keeps || !run.shape.task().class_names.empty()) return;
  run.model.own.put(concat("model.", kKey),
                    {.value = ConfigValue::List(names.begin(), names.end()), .where = config.data.path});
  Config named = config;
  named.model = run.model;
  run.shape = resolve_model(named, registry).shape;
}

}  // namespace

ResolvedModel resolve_model(const Config& config, const models::Registry& registry) {
  ResolvedModel model{registry.resolve(config.model), nullptr};
  if (model.shape.task().reads != models::Reads::Tokens) return model;
  model.tokenizer = text::make_tokenizer(config.tokenizer());
  model.shape = registry.resolve(config.model, ids_of(model.shape.task(), *model.tokenizer));
  return model;
}

RunData open_data(const Config& config, const models::Registry& registry, const std::string& builtin, int replica,
                  std::optional<at::Device> device) {
  ResolvedModel model = resolve_model(config, registry);
  const bool reads_text = model.tokenizer != nullptr;
  const Parts parts =
      reads_text ? open_text(config, model.shape, *model.tokenizer, builtin) : open_images(config, model.shape);
  data::BatchOptions options{.batch_size = config.training.batch_size,
                             .rank = replica,
                             .ranks = static_cast<int>(config.parallel.data),
                             .seed = static_cast<uint64_t>(config.training.seed),
                             .pinned = !(device ? *device : comm::choose_device(config.run.device, 0)).is_cpu()};
  RunData run{model.shape,
              std::move(model.tokenizer),
              std::make_unique<data::Batches>(parts.training, options),
              nullptr,
              reads_text ? config.data.sequence : model.shape.positions,
              config.model};
  learn_class_names(parts.class_names, config, registry, run);
  options.shuffle = false;
  options.counts_once = true;
  if (parts.held_out) run.held_out = std::make_unique<data::Batches>(parts.held_out, options);
  return run;
}

}  // namespace colossal::run
