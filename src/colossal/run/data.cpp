#include "colossal/run/data.h"

#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/data/cifar.h"
#include "colossal/data/corpus.h"
#include "colossal/data/text_samples.h"

namespace colossal::run {
namespace {

struct Parts {
  std::shared_ptr<const data::Samples> training, held_out;
};

bool evaluates(const Config& config) { return config.training.evaluate_batches > 0; }

Parts open_text(const Config& config, const models::ModelShape& shape, const data::Tokenizer& tokenizer,
                const std::string& builtin) {
  const DataConfig& d = config.data;
  require(tokenizer.vocabulary_size() <= shape.vocabulary, "model", "the vocabulary must hold the tokenizer's: got ",
          shape.vocabulary, ", tokenizer ", tokenizer.vocabulary_size(), "; set model.vocabulary");
  require(d.sequence <= shape.positions, "data", "sequence must not exceed the model's positions: got ", d.sequence,
          " of ", shape.positions, "; lower data.sequence or raise model.positions");
  std::error_code none;
  require(
      d.path != "builtin" || std::filesystem::is_directory(builtin, none), "data",
      "data.path = \"builtin\" is the text of the sources that this program was built from, but they are no longer at ",
      builtin, "; name a text file or a folder with --data.path=PATH");
  const auto corpus = data::Corpus::open(d.path == "builtin" ? builtin : d.path, tokenizer, {config.run.folder});
  auto [training, held_out] = corpus.split(d.held_out);
  const auto documents = d.documents == "joined" ? data::Documents::Joined : data::Documents::Separate;
  Parts parts{std::make_shared<data::TextSamples>(training, d.sequence, documents), {}};
  if (!evaluates(config) || d.held_out == 0) return parts;
  require(held_out.size() > d.sequence, "data", "the held-out part must hold a sequence: got ", held_out.size(),
          " tokens of ", corpus.size(), ", sequence ", d.sequence,
          "; raise data.held_out, lower data.sequence, or set training.evaluate_batches = 0");
  parts.held_out = std::make_shared<data::TextSamples>(held_out, d.sequence, documents);
  return parts;
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

}  // namespace

ResolvedModel resolve_model(const Config& config, const models::Registry& registry) {
  ResolvedModel model{registry.resolve(config.model), nullptr};
  if (model.shape.task().reads != models::Reads::Tokens) return model;
  model.tokenizer = data::make_tokenizer(config.tokenizer());
  model.shape = registry.resolve(config.model, model.tokenizer->vocabulary_size());
  return model;
}

RunData open_data(const Config& config, const models::Registry& registry, const std::string& builtin, int replica) {
  ResolvedModel model = resolve_model(config, registry);
  const bool reads_text = model.tokenizer != nullptr;
  const Parts parts =
      reads_text ? open_text(config, model.shape, *model.tokenizer, builtin) : open_images(config, model.shape);
  data::BatchOptions options{.batch_size = config.training.batch_size,
                             .rank = replica,
                             .ranks = static_cast<int>(config.parallel.data),
                             .seed = static_cast<uint64_t>(config.training.seed)};
  RunData run{model.shape, std::move(model.tokenizer), std::make_unique<data::Batches>(parts.training, options),
              nullptr, reads_text ? config.data.sequence : model.shape.positions};
  options.shuffle = false;
  if (parts.held_out) run.held_out = std::make_unique<data::Batches>(parts.held_out, options);
  return run;
}

}  // namespace colossal::run
