// The objective of models that classify whole samples: labelled texts, CIFAR's images, folders of images, drawn shapes.
#include <filesystem>
#include <set>

#include "colossal/base/error.h"
#include "colossal/data/pictures/folder.h"
#include "colossal/data/pictures/image_samples.h"
#include "colossal/data/pictures/shapes.h"
#include "colossal/data/texts/labelled.h"
#include "colossal/run/objectives/built_in.h"
#include "colossal/run/objectives/class_pictures.h"
#include "colossal/run/objectives/head_objective.h"
#include "colossal/run/objectives/text_data.h"
#include "colossal/run/unused_keys.h"

namespace colossal::run {
namespace {

/// Opens the labelled texts of data.path. Errors ("data", "model"): errors of reading; classes that differ from the
/// model's.
OpenedData open_labelled(const DataRequest& request, const ClassKeys& keys) {
  const DataConfig& d = request.config.data;
  const text::Tokenizer& tokenizer = *request.tokenizer;
  const models::Task task = request.shape.task();
  require(d.path != "builtin", "data", "a model that ", task.purpose(),
          " reads labelled texts: name a file of lines `label<tab>text`, or a .jsonl, with --data.path=PATH");
  require(d.documents == "separate", "data",
          "documents must be separate for labelled texts, which must not attend to padding: got ", d.documents);
  const bool has_records = reads_records(d);
  check_unused_data_keys(d, {.records = has_records});
  const std::string images = "a model of images";
  refuse_unused_data_keys(keys, {{"label_column", has_records, kRecords},
                                 {"augment", false, images},
                                 {"image_mean", false, images},
                                 {"image_deviation", false, images},
                                 {"min_crop_area", false, images}});
  data::LabelledTexts all = data::read_labelled_texts(d.path, {.text_columns = d.text_columns,
                                                               .label_column = keys.label_column,
                                                               .max_line_bytes = d.max_line_bytes,
                                                               .on_error = on_error_of(d)});
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
  OpenedData parts{.training = std::make_shared<data::LabelledSamples>(training, tokenizer, d.sequence),
                   .class_names = all.names,
                   .notices = all.skipped_records};
  if (evaluates(request.config) && d.held_out > 0)
    parts.held_out = std::make_shared<data::LabelledSamples>(held_out, tokenizer, d.sequence);
  return parts;
}

/// Opens the images of data.path with their classes. Errors ("data", "model"): errors of reading; sizes or classes that
/// differ from the model's.
OpenedData open_images(const Config& config, const ClassKeys& keys, const models::ModelShape& shape) {
  const models::Task task = shape.task();
  check_unused_data_keys(config.data, {.images = true});
  refuse_unused_data_keys(keys, {{"label_column", false, concat(kRecords, " for a model that classifies texts")}});
  const bool are_drawn = data::parse_builtin_shapes(config.data.path).has_value();
  if (are_drawn)
    refuse_unused_data_keys(keys, {{"min_crop_area", false, "a folder of pictures in data.path, not drawn shapes"}});
  if (are_drawn || data::PictureFolder::is_one(config.data.path))
    return open_class_pictures(config, {task.classes, task.channels, task.class_names},
                               {.width = task.side,
                                .mean = keys.image_mean,
                                .deviation = keys.image_deviation,
                                .augment = keys.augment,
                                .min_crop_area = keys.min_crop_area,
                                .on_error = on_error_of(config.data)});
  const std::string folder = "a folder of pictures in data.path, not binary files of CIFAR";
  refuse_unused_data_keys(
      keys, {{"image_mean", false, folder}, {"image_deviation", false, folder}, {"min_crop_area", false, folder}});
  const auto read = [&](data::CifarPart part) {
    data::ImageSet set = data::read_cifar(config.data.path, part);
    require(set.classes <= task.classes, "model", "classes must hold those of the images: got ", task.classes,
            ", images of ", set.classes, "; set model.classes");
    require(set.pixels.size(1) == task.channels && set.pixels.size(2) == task.side, "model",
            "channels and side must be those of the images: got ", task.channels, " and ", task.side, ", images have ",
            set.pixels.size(1), " and ", set.pixels.size(2), "; set model.channels and model.side");
    return set;
  };
  OpenedData parts{.training = std::make_shared<data::ImageSamples>(read(data::CifarPart::Training), keys.augment)};
  if (evaluates(config)) parts.held_out = std::make_shared<data::ImageSamples>(read(data::CifarPart::Test), false);
  return parts;
}

/// The objective of a classifier. Labels [B, 1]: the class of each sample.
class Class : public CountingObjective {
 public:
  Class(const Config& config, const models::ModelShape& shape, ClassKeys keys);
  OpenedData open(const DataRequest& request) const override;

 private:
  ClassKeys keys_;
};

Class::Class(const Config& config, const models::ModelShape& shape, ClassKeys keys)
    : CountingObjective(config, shape), keys_(std::move(keys)) {
  const models::Task task = shape.task();
  check_head(task.reads != models::Reads::Fields && task.classes > 0, "class", "classifies whole samples", shape);
  refuse_unused_data_keys(keys_, {{"min_crop_area", keys_.augment, "data.augment"}});
}

OpenedData Class::open(const DataRequest& request) const {
  if (request.shape.task().reads_text()) return open_labelled(request, keys_);
  OpenedData data = open_images(request.config, keys_, request.shape);
  data.threads = static_cast<int>(request.config.data.threads);
  return data;
}

}  // namespace

std::unique_ptr<Objective> make_class(const Config& config, const OwnTables& tables, const models::ModelShape& shape) {
  return std::make_unique<Class>(config, shape, tables.data<ClassKeys>());
}

}  // namespace colossal::run
