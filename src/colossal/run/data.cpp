#include "colossal/run/data.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/comm/launch/device.h"
#include "colossal/data/cifar.h"
#include "colossal/data/corpus.h"
#include "colossal/data/corrupted_spans.h"
#include "colossal/data/document_stream.h"
#include "colossal/data/json_lines.h"
#include "colossal/data/labelled_texts.h"
#include "colossal/data/masked_samples.h"
#include "colossal/data/pair_samples.h"
#include "colossal/data/picture_folder.h"
#include "colossal/data/text_samples.h"

namespace colossal::run {
namespace {

struct Parts {
  std::shared_ptr<const data::Samples> training, held_out;
  std::vector<std::string> class_names{};
  std::unique_ptr<data::BatchReader> stream{};  ///< in place of `training`
  std::vector<std::string> notices{};           ///< of what was passed over
};

bool evaluates(const Config& config) { return config.training.evaluate_batches > 0; }

data::PairSizes pair_sizes_of(const DataConfig& d, const models::Task& task) {
  const int64_t source = task.source_of(d.sequence);
  return {.source = source, .target = d.sequence - source, .start_id = task.start_id};
}

data::SpanOptions spans_of(const DataConfig& d) { return {.density = d.noise_density, .mean_span = d.mean_span}; }

std::vector<int64_t> sentinels_of(const DataConfig& d, const models::Task& task, const text::Tokenizer& tokenizer) {
  return data::sentinel_ids(tokenizer, data::span_counts(pair_sizes_of(d, task), spans_of(d)).spans);
}

bool hides_spans(const DataConfig& d, const models::Task& task) { return task.answers() && d.noise_density > 0; }

/// Ids that a model of `task` reads: the tokenizer's, and after them those of the mask or the sentinels that it lacks.
int64_t ids_of(const DataConfig& d, const models::Task& task, const text::Tokenizer& tokenizer) {
  int64_t ids = tokenizer.vocabulary_size();
  if (task.objective == "masked-token" && tokenizer.mask_id() < 0) ++ids;
  if (hides_spans(d, task))
    for (const int64_t id : sentinels_of(d, task, tokenizer)) ids = std::max(ids, id + 1);
  return ids;
}

data::Faults faults_of(const DataConfig& d) { return d.faults == "skip" ? data::Faults::Skip : data::Faults::Refuse; }

data::Documents documents_of(const DataConfig& d) {
  return d.documents == "joined" ? data::Documents::Joined : data::Documents::Separate;
}

/// None of a model that predicts the next token.
std::optional<data::Masking> masking_of(const DataConfig& d, const models::Task& task,
                                        const text::Tokenizer& tokenizer) {
  if (task.objective == "next-token") return std::nullopt;
  const int64_t words = tokenizer.vocabulary_size(), mask = tokenizer.mask_id();
  return data::Masking{.share = d.masked,
                       .random = d.masked_random,
                       .kept = d.masked_kept,
                       .mask_id = mask < 0 ? words : mask,
                       .vocabulary = words};
}

std::shared_ptr<const data::Samples> samples_of(const data::Corpus& corpus, const DataConfig& d,
                                                const models::Task& task, const text::Tokenizer& tokenizer) {
  const auto masking = masking_of(d, task, tokenizer);
  if (!masking) return std::make_shared<data::TextSamples>(corpus, d.sequence, documents_of(d));
  return std::make_shared<data::MaskedSamples>(corpus, d.sequence, documents_of(d), *masking);
}

/// Whether the text is read as a stream: of JSON lines.
bool is_streamed(const DataConfig& d) {
  return !d.sources.empty() || data::is_record_file(d.path) || (d.path != "builtin" && data::is_record_folder(d.path));
}

std::vector<data::StreamSource> sources_of(const DataConfig& d) {
  require(d.weights.empty() || d.weights.size() == d.sources.size(), "data",
          "weights must be one for each source: got ", d.weights.size(), " for ", d.sources.size(), " of data.sources");
  if (d.sources.empty()) return {data::StreamSource::open("path", d.path, 1)};
  require(d.path == "builtin", "data", "data.sources replaces data.path: got both, path = ", d.path, "; leave one out");
  std::vector<data::StreamSource> sources;
  for (size_t i = 0; i < d.sources.size(); ++i) {
    const size_t equals = d.sources[i].find('=');
    require(equals != std::string::npos && equals > 0, "data", "each source must be `name=path`: got ", d.sources[i]);
    sources.push_back(data::StreamSource::open(d.sources[i].substr(0, equals), d.sources[i].substr(equals + 1),
                                               d.weights.empty() ? 1 : d.weights[i]));
  }
  return sources;
}

Parts open_stream(const Config& config, const models::Task& task,
                  const std::shared_ptr<const text::Tokenizer>& tokenizer, int replica) {
  const DataConfig& d = config.data;
  const bool holds_out = evaluates(config) && d.held_out > 0;
  data::DocumentStreamOptions options{.batch_size = config.training.batch_size,
                                      .rank = replica,
                                      .ranks = static_cast<int>(config.parallel.data),
                                      .sequence = d.sequence,
                                      .documents = documents_of(d),
                                      .masking = masking_of(d, task, *tokenizer),
                                      .columns = d.text_columns,
                                      .threads = static_cast<int>(d.threads),
                                      .records = {.seed = static_cast<uint64_t>(config.training.seed),
                                                  .shuffle = d.shuffle_bytes > 0,
                                                  .shuffle_bytes = d.shuffle_bytes,
                                                  .longest_line = d.longest_line,
                                                  .held_out = d.held_out,
                                                  .part = data::Part::Training,
                                                  .faults = faults_of(d)}};
  const std::vector<data::StreamSource> sources = sources_of(d);
  Parts parts;
  if (holds_out) {
    const int64_t tokens = config.training.evaluate_batches * config.training.batch_size * d.sequence + 1;
    const auto corpus = data::read_held_out(sources, *tokenizer, options, tokens, parts.notices);
    require(corpus.size() > d.sequence, "data", "the held-out part must hold a sequence: got ", corpus.size(),
            " tokens, sequence ", d.sequence,
            "; raise data.held_out, lower data.sequence, or set training.evaluate_batches = 0");
    parts.held_out = samples_of(corpus, d, task, *tokenizer);
  }
  for (const data::StreamSource& source : sources)
    if (source.left_out) parts.notices.push_back(*source.left_out);
  parts.stream = std::make_unique<data::DocumentStream>(sources, tokenizer, std::move(options));
  return parts;
}

/// The text of data.path, which is not streamed, with some of it held out.
struct PlainText {
  data::Corpus training, held_out;
  std::vector<std::string> notices;  ///< files of a folder that were not read
};

PlainText open_plain_text(const DataConfig& d, const std::string& run_folder, const text::Tokenizer& tokenizer,
                          const std::string& builtin) {
  std::error_code none;
  require(d.path != "builtin" || std::filesystem::is_directory(builtin, none), "data",
          "data.path = \"builtin\" needs the sources that this program was built from, but they are no longer at ",
          builtin, "; name a text file or a folder with --data.path=PATH");
  const auto corpus = data::Corpus::open(d.path == "builtin" ? builtin : d.path, tokenizer, {run_folder});
  auto [training, held_out] = corpus.split(d.held_out);
  PlainText text{std::move(training), std::move(held_out), {}};
  if (corpus.left_out() && d.path != "builtin") text.notices.push_back(*corpus.left_out());
  return text;
}

Parts open_corpus(const Config& config, const models::Task& task, const text::Tokenizer& tokenizer,
                  const std::string& builtin) {
  const DataConfig& d = config.data;
  const auto [training, held_out, notices] = open_plain_text(d, config.run.folder, tokenizer, builtin);
  Parts parts{samples_of(training, d, task, tokenizer), {}};
  parts.notices = notices;
  if (!evaluates(config) || d.held_out == 0) return parts;
  require(held_out.size() > d.sequence, "data", "the held-out part must hold a sequence: got ", held_out.size(),
          " tokens of ", training.size() + held_out.size(), ", sequence ", d.sequence,
          "; raise data.held_out, lower data.sequence, or set training.evaluate_batches = 0");
  parts.held_out = samples_of(held_out, d, task, tokenizer);
  return parts;
}

Parts open_labelled(const Config& config, const models::Task& task, const text::Tokenizer& tokenizer) {
  const DataConfig& d = config.data;
  require(d.path != "builtin", "data", "a model that ", task.purpose(),
          " reads labelled texts: name a file of lines `label<tab>text`, or a .jsonl, with --data.path=PATH");
  require(d.documents == "separate", "data",
          "documents must be separate for labelled texts, which must not attend to padding: got ", d.documents);
  require(d.sources.empty(), "data", "labelled texts are read from one data.path: got data.sources");
  data::LabelledTexts all = data::read_labelled_texts(d.path, {.text_columns = d.text_columns,
                                                               .label_column = d.label_column,
                                                               .longest_line = d.longest_line,
                                                               .faults = faults_of(d)});
  if (!task.class_names.empty()) all.number_as(task.class_names);
  const bool has_names = !all.names.empty();
  require(all.classes <= task.classes, "model", "classes must hold those of the texts: got ", task.classes, ", ",
          d.path, " has ", all.classes, "; set model.classes");
  const std::set<std::string> taken(all.names.begin(), all.names.end());
  for (int64_t i = all.classes; has_names && i < task.classes; ++i) {
    all.names.push_back(concat("LABEL_", i));
    require(!taken.contains(all.names.back()), "data", "class names must differ: an unused class would be named ",
            all.names.back(), " like a class of ", d.path, "; set model.class_names, or model.classes=", all.classes);
  }
  const auto [training, held_out] = all.split(d.held_out);
  Parts parts{std::make_shared<data::LabelledSamples>(training, tokenizer, d.sequence), {}, all.names};
  parts.notices = all.passed_over;
  if (evaluates(config) && d.held_out > 0)
    parts.held_out = std::make_shared<data::LabelledSamples>(held_out, tokenizer, d.sequence);
  return parts;
}

Parts open_pairs(const Config& config, const models::Task& task, const text::Tokenizer& tokenizer) {
  const DataConfig& d = config.data;
  require(d.path != "builtin" && d.sources.empty(), "data", "a model that ", task.purpose(),
          " reads pairs of texts from one data.path: name a .jsonl, or a file of lines `text<tab>answer`, with "
          "--data.path=PATH");
  require(d.documents == "separate", "data",
          "documents must be separate for pairs of texts, which must not attend to padding: got ", d.documents);
  const data::TextPairs all = data::read_text_pairs(d.path, {.text_columns = d.text_columns,
                                                             .target_column = d.target_column,
                                                             .longest_line = d.longest_line,
                                                             .faults = faults_of(d)});
  const data::PairSizes sizes = pair_sizes_of(d, task);
  const auto [training, held_out] = all.split(d.held_out);
  Parts parts{std::make_shared<data::PairSamples>(training, tokenizer, sizes), {}};
  if (evaluates(config) && d.held_out > 0)
    parts.held_out = std::make_shared<data::PairSamples>(held_out, tokenizer, sizes);
  return parts;
}

Parts open_spans(const Config& config, const models::Task& task, const text::Tokenizer& tokenizer,
                 const std::string& builtin) {
  const DataConfig& d = config.data;
  require(!is_streamed(d), "data",
          "noise_density needs plain text: got records in data.path or data.sources; name a text file, a folder of "
          "text files or a token file with --data.path=PATH");
  require(d.documents == "joined", "data",
          "documents must be joined with noise_density, because the spans of all documents of a sample share one "
          "target: got ",
          d.documents);
  const data::PairSizes sizes = pair_sizes_of(d, task);
  const std::vector<int64_t> sentinels = sentinels_of(d, task, tokenizer);
  const auto [training, held_out, notices] = open_plain_text(d, config.run.folder, tokenizer, builtin);
  Parts parts{std::make_shared<data::CorruptedSpans>(training, sizes, spans_of(d), sentinels), {}};
  parts.notices = notices;
  if (!evaluates(config) || d.held_out == 0) return parts;
  const int64_t sample = data::span_counts(sizes, spans_of(d)).text;
  require(held_out.size() >= sample, "data", "the held-out part must hold a sample: got ", held_out.size(),
          " tokens, a sample has ", sample,
          "; raise data.held_out, lower data.sequence, or set training.evaluate_batches = 0");
  parts.held_out = std::make_shared<data::CorruptedSpans>(held_out, sizes, spans_of(d), sentinels);
  return parts;
}

Parts open_text(const Config& config, const models::ModelShape& shape,
                const std::shared_ptr<const text::Tokenizer>& shared, const std::string& builtin, int replica) {
  const DataConfig& d = config.data;
  const text::Tokenizer& tokenizer = *shared;
  const models::Task task = shape.task();
  const int64_t ids = ids_of(d, task, tokenizer);
  require(
      ids <= shape.vocabulary, "model", "the vocabulary must hold the tokenizer's: got ", shape.vocabulary,
      ", tokenizer ", tokenizer.vocabulary_size(),
      ids == tokenizer.vocabulary_size() ? ""
      : hides_spans(d, task)             ? " and the sentinels"
                                         : " and the mask token",
      config.model.from.empty() ? "; set model.vocabulary" : "; set data.tokenizer to the one of that folder's model");
  require(d.sequence <= shape.positions, "data", "sequence must not exceed the model's positions: got ", d.sequence,
          " of ", shape.positions, "; lower data.sequence or raise model.positions");
  if (task.objective == "class") return open_labelled(config, task, tokenizer);
  if (hides_spans(d, task)) return open_spans(config, task, tokenizer, builtin);
  if (task.answers()) return open_pairs(config, task, tokenizer);
  return is_streamed(d) ? open_stream(config, task, shared, replica) : open_corpus(config, task, tokenizer, builtin);
}

/// The training and the held-out pictures: of folders called train and test (or val, validation), or of one.
std::pair<data::PictureFolder, data::PictureFolder> open_folders(const Config& config) {
  namespace fs = std::filesystem;
  const DataConfig& d = config.data;
  std::error_code failed;
  if (!fs::is_directory(d.path + "/train", failed)) {
    const auto all = data::PictureFolder::open(d.path);
    return evaluates(config) && d.held_out > 0 ? all.split(d.held_out) : std::pair{all, data::PictureFolder{}};
  }
  std::pair<data::PictureFolder, data::PictureFolder> parts{data::PictureFolder::open(d.path + "/train"), {}};
  for (const char* name : {"/test", "/val", "/validation"}) {
    if (!evaluates(config) || !fs::is_directory(d.path + name, failed)) continue;
    parts.second = data::PictureFolder::open(d.path + name);
    parts.second.number_as(parts.first.classes);
    return parts;
  }
  require(!evaluates(config), "data", "there are pictures to train on in ", d.path,
          "/train but none to evaluate with: add a folder test or val, or set training.evaluate_batches = 0");
  return parts;
}

Parts open_pictures(const Config& config, const models::Task& task) {
  const DataConfig& d = config.data;
  auto [training, held_out] = open_folders(config);
  const auto classes = static_cast<int64_t>(training.classes.size());
  require(classes <= task.classes, "model", "classes must hold those of the pictures: got ", task.classes, ", ", d.path,
          " has ", classes, "; set model.classes");
  require(task.channels == 3, "model", "channels must be 3 for pictures in a folder: got ", task.channels);
  if (!task.class_names.empty()) {
    training.number_as(task.class_names);
    if (!held_out.names.empty()) held_out.number_as(task.class_names);
  }
  data::PictureOptions options{.side = task.side,
                               .mean = d.image_mean,
                               .deviation = d.image_deviation,
                               .augment = d.augment,
                               .least_area = d.least_area,
                               .faults = faults_of(d)};
  std::vector<std::string> names = training.classes;
  for (int64_t i = classes; i < task.classes; ++i) names.push_back(concat("LABEL_", i));
  std::vector<std::string> notices;
  for (const data::PictureFolder* part : {&training, &held_out})
    if (part->left_out) notices.push_back(*part->left_out);
  Parts parts{std::make_shared<data::PictureSamples>(std::move(training), options), {}, std::move(names)};
  parts.notices = std::move(notices);
  options.augment = false;
  if (!held_out.names.empty()) parts.held_out = std::make_shared<data::PictureSamples>(std::move(held_out), options);
  return parts;
}

Parts open_images(const Config& config, const models::ModelShape& shape) {
  const models::Task task = shape.task();
  if (data::PictureFolder::is_one(config.data.path)) return open_pictures(config, task);
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

void refuse_unused_noise(const DataConfig& d, const models::Task& task) {
  require(task.answers() || d.noise_density == 0, "data", "noise_density must be 0 for a model that ", task.purpose(),
          ": got ", d.noise_density, "; leave it out, or name a model with an encoder and a decoder");
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
  if (!model.shape.task().reads_text()) return model;
  model.tokenizer = text::make_tokenizer(config.tokenizer());
  model.shape = registry.resolve(config.model, ids_of(config.data, model.shape.task(), *model.tokenizer));
  return model;
}

RunData open_data(const Config& config, const models::Registry& registry, const std::string& builtin, int replica,
                  std::optional<at::Device> device) {
  ResolvedModel model = resolve_model(config, registry);
  refuse_unused_noise(config.data, model.shape.task());
  const bool reads_text = model.tokenizer != nullptr;
  const std::shared_ptr<text::Tokenizer> tokenizer = std::move(model.tokenizer);
  Parts parts =
      reads_text ? open_text(config, model.shape, tokenizer, builtin, replica) : open_images(config, model.shape);
  data::BatchOptions options{.batch_size = config.training.batch_size,
                             .rank = replica,
                             .ranks = static_cast<int>(config.parallel.data),
                             .seed = static_cast<uint64_t>(config.training.seed),
                             .threads = static_cast<int>(reads_text ? 1 : config.data.threads),
                             .pinned = !(device ? *device : comm::choose_device(config.run.device, 0)).is_cpu()};
  RunData run{model.shape,
              tokenizer,
              parts.stream ? std::make_unique<data::Batches>(std::move(parts.stream), options.pinned)
                           : std::make_unique<data::Batches>(parts.training, options),
              nullptr,
              reads_text ? config.data.sequence : model.shape.positions,
              config.model};
  run.training->tell(parts.notices);
  learn_class_names(parts.class_names, config, registry, run);
  options.shuffle = false;
  options.counts_once = true;
  if (parts.held_out) run.held_out = std::make_unique<data::Batches>(parts.held_out, options);
  return run;
}

}  // namespace colossal::run
