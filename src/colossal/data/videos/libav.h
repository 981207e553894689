// FFmpeg's libraries, loaded when the first video needs them. Included by the files alone that read and write by them.
//
//   const Libav& av = libav();
//   AVFrame* frame = av.frame_alloc();
//
// They are not linked: they bring more than a hundred further libraries, which would slow down the start of every
// command and be a part of every package.
#pragma once
extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/opt.h>
#include <libswscale/swscale.h>
}

#include <string>

namespace colossal::data {

/// The functions that are used, by their names without `av_`.
struct Libav {
  decltype(&::av_strerror) strerror;
  decltype(&::av_malloc) malloc;
  decltype(&::av_freep) freep;
  decltype(&::av_dict_set) dict_set;
  decltype(&::av_dict_free) dict_free;
  decltype(&::av_opt_set) opt_set;
  decltype(&::av_frame_alloc) frame_alloc;
  decltype(&::av_frame_free) frame_free;
  decltype(&::av_frame_get_buffer) frame_get_buffer;
  decltype(&::av_frame_make_writable) frame_make_writable;
  decltype(&::av_log_set_level) log_set_level;

  decltype(&::av_packet_alloc) packet_alloc;
  decltype(&::av_packet_free) packet_free;
  decltype(&::av_packet_unref) packet_unref;
  decltype(&::av_packet_rescale_ts) packet_rescale_ts;
  decltype(&::avcodec_find_encoder) find_encoder;
  decltype(&::avcodec_alloc_context3) alloc_codec;
  decltype(&::avcodec_free_context) free_codec;
  decltype(&::avcodec_parameters_to_context) parameters_to_codec;
  decltype(&::avcodec_parameters_from_context) parameters_from_codec;
  decltype(&::avcodec_open2) open_codec;
  decltype(&::avcodec_send_packet) send_packet;
  decltype(&::avcodec_receive_frame) receive_frame;
  decltype(&::avcodec_send_frame) send_frame;
  decltype(&::avcodec_receive_packet) receive_packet;
  decltype(&::avcodec_flush_buffers) flush_buffers;

  decltype(&::avio_alloc_context) alloc_io;
  decltype(&::avio_context_free) free_io;
  decltype(&::avformat_alloc_context) alloc_format;
  decltype(&::avformat_free_context) free_format;
  decltype(&::avformat_open_input) open_input;
  decltype(&::avformat_close_input) close_input;
  decltype(&::avformat_find_stream_info) find_stream_info;
  decltype(&::av_find_best_stream) find_best_stream;
  decltype(&::av_stream_get_side_data) stream_side_data;
  decltype(&::av_read_frame) read_packet;
  decltype(&::av_seek_frame) seek_frame;
  decltype(&::avformat_alloc_output_context2) alloc_output;
  decltype(&::avformat_new_stream) new_stream;
  decltype(&::avformat_write_header) write_header;
  decltype(&::av_interleaved_write_frame) write_packet;
  decltype(&::av_write_trailer) write_trailer;

  decltype(&::sws_getCachedContext) cached_scaler;
  decltype(&::sws_freeContext) free_scaler;
  decltype(&::sws_getCoefficients) coefficients;
  decltype(&::sws_setColorspaceDetails) set_colorspace;
  decltype(&::sws_scale) scale;
};

/// Returns the functions. Errors ("data"): the libraries of the version that this program was built with cannot be
/// loaded; the message names the packages. Thread safety: any thread may call it.
const Libav& libav();

/// Returns FFmpeg's words for an error code.
std::string libav_error(int code);

/// Number of bytes that FFmpeg's libraries read or write at once.
constexpr int kLibavPiece = 1 << 15;

/// Number of bytes behind pixels that FFmpeg's libraries may read or write, because they work on several at once.
constexpr size_t kLibavMargin = 64;

}  // namespace colossal::data
