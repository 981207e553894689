// What a model of a run makes while it trains: a text, a picture, another file. The record of the run and its report
// show it.
//
//   row.samples = [](train::Trainer& trainer, const run::ShowText&) {
//     return std::vector<run::Sample>{run::picture_sample("a circle", "circle", drawn(trainer))};
//   };
#pragma once
#include <functional>
#include <string>
#include <utility>

#include "colossal/data/pictures/picture.h"

namespace colossal::run {

/// One sample.
struct Sample {
  std::string title{};  ///< what was asked for: the prompt of a text
  std::string text{};   ///< a text; empty = the sample is a file
  /// Name of a file with its ending, of letters, digits, `_`, `-` and `.`: "circle.png". It is written to the folder
  /// samples/ of the run folder, after the number of the step. The report shows .png and .gif, and links to others
  std::string file{};
  std::string bytes{};  ///< contents of that file
};

/// Shows a piece of a text to the user while it is generated; null = nobody reads along.
using ShowText = std::function<void(const std::string& piece)>;

/// Returns a sample that is a picture. `name`: of the file, without its ending.
inline Sample picture_sample(const std::string& title, const std::string& name, const data::Picture& picture) {
  return {.title = title, .file = name + ".png", .bytes = data::encode_png(picture)};
}

/// Returns a sample that is a clip. `name`: of the file, without its ending; `gif`: contents of that file, which the
/// report shows moving.
inline Sample clip_sample(const std::string& title, const std::string& name, std::string gif) {
  return {.title = title, .file = name + ".gif", .bytes = std::move(gif)};
}

}  // namespace colossal::run
