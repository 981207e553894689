// The files of drawn clips, and the places to which `colossal draw` writes.
//
//   check_drawn_path("out.gif", source, task.options);          // before anything is drawn
//   ClipFiles clips("out.gif", /*as_json=*/false);
//   drawer.draw(options, {}, [&](const diffusion::DrawnPicture& frame) { clips.write(frame); });
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "colossal/comm/mesh.h"
#include "colossal/data/videos/clip_writer.h"
#include "colossal/diffusion/decoded_clip.h"
#include "colossal/diffusion/draw_options.h"
#include "colossal/diffusion/drawn_picture.h"
#include "colossal/run/objectives/diffusion/pipeline_source.h"

namespace colossal::cli {

/// Checks that the path of --to is one of a file that can be written, or of a folder: one that is there, ends with a
/// slash, or has no ending of letters and digits. Errors ("draw"): another ending, such as .webm or .jpg.
void check_drawn_name(const std::string& to);

/// Returns true if the path of --to names one file, by its ending: .png, .gif, .y4m or .mp4 in any case. Others are
/// folders.
bool names_drawn_file(const std::string& to);

/// Returns the path of a drawing in a folder: its number in this command in four digits or more, its seed and `ending`.
std::string numbered_path(const std::string& folder, int64_t number, int64_t seed, const char* ending);

/// Checks that what these options draw can be written to `to`.
/// Errors ("draw"): a clip of several frames to .png; a picture to a file of clips; .mp4 with odd sides, with the
/// nearest even ones. ("data"): those of ClipWriter, such as a rate that a GIF does not have, or .mp4 in a build
/// without libav; an image whose header cannot be read. ("file"): the file cannot be written there.
void check_drawn_path(const std::string& to, const run::PipelineSource& source, const diffusion::DrawOptions& options);

/// Returns the flags --frames and --fps of these options, each with a space before it; empty = neither is set.
std::string frame_flags(const diffusion::DrawOptions& options);

/// Decodes a clip of an earlier command (diffusion::decode_clip()) and calls `take` for each frame, with its number and
/// the rate of the options. Communication and errors: those of diffusion::decode_clip().
void decode_frames(const diffusion::PipelineParts& parts, comm::Mesh& mesh, const diffusion::ClipToDecode& clip,
                   const diffusion::DrawOptions& options,
                   const std::function<void(diffusion::DrawnPicture& frame)>& take);

/// Writes clips frame by frame and prints a line for each.
class ClipFiles {
 public:
  /// `to`: a file for one clip, or a folder of GIF files, which must be there.
  ClipFiles(std::string to, bool as_json) : to_(std::move(to)), as_json_(as_json) {}

  /// Writes the next frame. The last one of a clip completes its file. Errors: those of data::ClipWriter.
  void write(const diffusion::DrawnPicture& frame);

 private:
  void finish(const diffusion::DrawnPicture& last);

  std::string to_;
  bool as_json_;
  int64_t written_ = 0;                     // complete files
  std::string path_;                        // file of the clip that is written
  std::unique_ptr<data::ClipWriter> clip_;  // null = a picture, or none
};

}  // namespace colossal::cli
