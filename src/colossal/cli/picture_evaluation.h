// How often a classifier names the class of pictures in folders.
//
//   colossal evaluate --from runs/vit --pictures drawn --json          {"accuracy": 0.91, "pictures": 200}
#pragma once
#include <string>

#include "colossal/cli/model_options.h"
#include "colossal/run/program.h"

namespace colossal::cli {

/// Prints the share of the pictures in `folder` whose class the model finds most probable. `folder` has a folder for
/// each class, by its name or number. Pictures are normalised as those on which the run was trained, those of a Hugging
/// Face folder as ImageNet's.
/// Errors ("evaluate"): a model that does not classify pictures in color; a class that it does not have. Errors of
/// data::PictureFolder and data::PictureSamples.
int evaluate_pictures(const std::string& from, const std::string& folder, bool as_json, const LoadedModel& loaded,
                      const run::Program& program);

}  // namespace colossal::cli
