#include "colossal/diffusion/decoded_clip.h"

#include <ATen/ATen.h>

#include <exception>
#include <optional>

#include "colossal/comm/agreement.h"
#include "colossal/diffusion/drawer.h"
#include "colossal/diffusion/drawing.h"

namespace colossal::diffusion {
namespace {

/// Runs `work` on all ranks. Its error becomes DecodingFailed on all of them.
void decode_together(comm::Mesh& mesh, const ClipToDecode& what, const std::function<void()>& work) {
  std::optional<Error> failed;
  try {
    failed = comm::agreed_error(mesh.all(), at::kCPU, work);
  } catch (const Error& error) {  // ranks that share rows cannot agree after one of them has failed
    failed = error;
  }
  if (failed) throw DecodingFailed(failed->message(), what.clip, what.seed);
}

/// Runs `work` on rank 0. Its error is thrown on all ranks, because the others go on to a collective.
void on_first_rank(comm::Mesh& mesh, const std::function<void()>& work) {
  comm::agree(mesh.all(), at::kCPU, [&] {
    if (mesh.world().rank() == 0) work();
  });
}

/// Decodes with an autoencoder of clips, on rank 0.
void decode_in_time(const PipelineParts& parts, comm::Mesh& mesh, const ClipToDecode& what,
                    const std::function<void(const data::Picture&)>& take) {
  std::exception_ptr of_take;  // such as a full disk, which is no failure to decode
  const auto work = [&] {
    if (mesh.world().rank() != 0) return;
    parts.decode_frames(what.clip, what.frames, [&](const at::Tensor& frame) {
      const data::Picture picture = picture_of(frame);
      try {
        take(picture);
      } catch (...) {
        of_take = std::current_exception();
        throw;
      }
    });
  };
  try {
    decode_together(mesh, what, work);
  } catch (const DecodingFailed&) {
    on_first_rank(mesh, [&] {
      if (of_take) std::rethrow_exception(of_take);
    });
    throw;
  }
}

}  // namespace

void decode_clip(const PipelineParts& parts, comm::Mesh& mesh, const ClipToDecode& what,
                 const std::function<void(const data::Picture&)>& take) {
  if (parts.decodes_clips()) return decode_in_time(parts, mesh, what, take);
  for (const at::Tensor& frame : what.clip.unbind(2)) {
    at::Tensor pixels;
    decode_together(mesh, what, [&] { pixels = parts.pixels(frame, what.in_tiles, &mesh.all()); });
    on_first_rank(mesh, [&] { take(picture_of(pixels[0])); });
  }
}

}  // namespace colossal::diffusion
