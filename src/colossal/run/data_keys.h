// Keys of [data] that only some objectives have. This header needs no LibTorch.
//
//   struct FrameKeys {
//     int64_t frames = 16;
//     void fields(Fields& f) { f.integer("frames", frames, "frames", "frames of a clip", 1); }
//     bool operator==(const FrameKeys&) const = default;
//   };
//
//   run::ObjectiveRow row{.name = "clips", .data = FrameKeys{}, .make = make_clips};    // --data.frames=8
//   const int64_t frames = tables.data<FrameKeys>().frames;                             // in make_clips
//
// The row of an objective names them (ObjectiveRow::data). Several objectives may have a key of the same name.
#pragma once
#include <string>
#include <vector>

#include "colossal/base/config.h"
#include "colossal/base/own_keys.h"

namespace colossal::run {

/// The keys of [data] of one objective, with their defaults.
struct DataKeys {
  std::string objective;
  OwnKeys keys;
};

/// Returns the value of DataConfig::own for a config made in code: data_keys({"masked=0.3"}).
/// Errors: the errors of ConfigDocument::set().
ConfigDocument data_keys(const std::vector<std::string>& assignments);

/// Returns the keys with their values, in the form of DataConfig::own in which a run saves its config.
ConfigDocument data_document_of(OwnKeys keys);

/// Returns the keys of the objective `objective` with the values of `own`. `known` must list the keys of all objectives
/// of the program. Adds a notice to `notices` for each key under its previous name.
/// Errors ("config"): a key that no objective has (the message names the nearest); a key that only other objectives
///                    have, unless it has its default value; values out of range. Each message names the place.
OwnKeys read_data_keys(const ConfigDocument& own, const std::vector<DataKeys>& known, const std::string& objective,
                       std::vector<std::string>& notices);

/// Checks the keys of `own` for commands that have no objective. Errors ("config"): a key that no objective of `known`
/// has; values out of range.
void refuse_other_data_keys(const ConfigDocument& own, const std::vector<DataKeys>& known);

/// Returns the help of the keys, those of the same objectives together. The help of their section names the objectives:
/// "keys of the objectives next-token and masked-token".
std::vector<KeyHelp> describe_data_keys(const std::vector<DataKeys>& known);

}  // namespace colossal::run
