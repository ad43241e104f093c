//! Amazon's own SDK for Python makes its calls through an entry with hosts, as the chapter says: by a proxy and `http://`
//! endpoints. The services check each signature (SigV4), by code that shares nothing with the SDK. What is refused here
//! the SDK knows for throttling, in each of its protocols.

use std::path::Path;

use sha2::{Digest, Sha256};

use super::prelude::*;
use crate::servers::certs::Ca;
use crate::servers::vendor::{Answer, Vendor, VendorCall};
use crate::servers::{only_on, port};

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const TOKEN: &str = "let-me-out";
/// A key whose spelling in a path must not change.
const OBJECT: &str = "a b/%C3/ü+=&?~.txt";

const SCRIPT: &str = "
import sys, boto3
from botocore.config import Config
from botocore.exceptions import ClientError
proxy, spent, at_s3, at_ses, secret, key = sys.argv[1:]
def client(service, at, proxy):
    config = Config(proxies={'http': proxy}, retries={'max_attempts': 0}, s3={'addressing_style': 'path'})
    return boto3.client(service, endpoint_url='http://' + at, config=config, region_name='us-east-1',
        aws_access_key_id='AKIDEXAMPLE', aws_secret_access_key=secret)
def refused(call):
    try: call()
    except ClientError as error: return error.response['Error']
s3, ses = client('s3', at_s3, proxy), client('ses', at_ses, proxy)
for n in range(334):
    s3.put_object(Bucket='bucket', Key=key, Body=b'hello %d' % n, ChecksumAlgorithm='SHA256')
    if n == 333: break
    assert s3.get_object(Bucket='bucket', Key=key, Range='bytes=0-4')['Body'].read() == b'hello'
    words = {'Subject': {'Data': 'hi'}, 'Body': {'Text': {'Data': 'a+b & c = %d' % n}}}
    sent = ses.send_email(Source='a@example.com', Destination={'ToAddresses': ['b@example.com']}, Message=words)
    assert sent['MessageId'] == 'm'
client('s3', at_s3, spent).get_object(Bucket='bucket', Key=key)['Body'].read()
# Each of their protocols: XML, forms of two kinds, JSON of two kinds, and CBOR.
for service, name in ('s3', 'list_buckets'), ('ses', 'list_identities'), ('ec2', 'describe_regions'), \
        ('dynamodb', 'list_tables'), ('lambda', 'list_functions'), ('cloudwatch', 'list_metrics'):
    error = refused(getattr(client(service, at_s3, spent), name))
    assert error['Code'] == 'ThrottlingException', (service, error)
    assert service == 'cloudwatch' or 'the calls of key spent are limited' in error['Message'], (service, error)
print('done')
";

const SENT: &str = "<SendEmailResponse xmlns=\"http://ses.amazonaws.com/doc/2010-12-01/\"><SendEmailResult>\
    <MessageId>m</MessageId></SendEmailResult><ResponseMetadata><RequestId>r</RequestId></ResponseMetadata></SendEmailResponse>";

fn hex(bytes: impl AsRef<[u8]>) -> String {
    let each = bytes.as_ref().iter();
    each.map(|byte| format!("{byte:02x}")).collect()
}

fn hmac(key: &[u8], message: &str) -> Vec<u8> {
    let padded = |with: u8| {
        let mut block = [with; 64];
        block
            .iter_mut()
            .zip(key)
            .for_each(|(byte, key)| *byte ^= key);
        block
    };
    let inner = Sha256::new()
        .chain_update(padded(0x36))
        .chain_update(message);
    let outer = Sha256::new().chain_update(padded(0x5c));
    outer.chain_update(inner.finalize()).finalize().to_vec()
}

/// Whether the signature is that of this call, as it came.
fn is_signed(call: &VendorCall) -> Result<(), String> {
    let header = |name: &str| call.header(name).ok_or(format!("no {name}: {}", call.head));
    let login = header("authorization")?;
    let part = |name: &str| {
        let (_, rest) = login.split_once(&format!("{name}="))?;
        rest.split(',').next()
    };
    let (Some(credential), Some(signed), Some(signature)) =
        (part("Credential"), part("SignedHeaders"), part("Signature"))
    else {
        return Err(login.to_owned());
    };
    let body = hex(Sha256::digest(&call.body));
    let payload = call.header("x-amz-content-sha256").unwrap_or(&body);
    if payload != body {
        return Err(format!("the body is another one: {payload}"));
    }
    let (path, query) = call.target().split_once('?').unwrap_or((call.target(), ""));
    let mut query: Vec<&str> = query.split('&').collect();
    query.sort_unstable();
    let mut lines = String::new();
    for name in signed.split(';') {
        lines += &format!("{name}:{}\n", header(name)?);
    }
    let (method, query) = (call.method(), query.join("&"));
    let asked = format!("{method}\n{path}\n{query}\n{lines}\n{signed}\n{payload}");
    let (_, scope) = credential.split_once('/').unwrap();
    let date = header("x-amz-date")?;
    let text = format!(
        "AWS4-HMAC-SHA256\n{date}\n{scope}\n{}",
        hex(Sha256::digest(&asked))
    );
    let key = scope
        .split('/')
        .fold(format!("AWS4{SECRET}").into_bytes(), |key, part| {
            hmac(&key, part)
        });
    match hex(hmac(&key, &text)) == signature {
        true => Ok(()),
        false => Err(format!("another signature: {asked}\n{}", call.head)),
    }
}

#[test]
fn each_of_a_thousand_signed_calls_is_taken_by_s3_and_ses() {
    only_on("boto3");
    let packages = Path::new(env!("CARGO_TARGET_TMPDIR")).join("boto3");
    let missing = "the SDK is missing: bash tests/run.sh --nightly fetches it, or --without boto3";
    assert!(packages.join("boto3").exists(), "{missing}");
    let ca = Ca::new();
    let signed = ca.server("aws");
    let s3 = Vendor::secured(&signed, |call| match call.method() {
        "PUT" => Answer::new(200, "").header("ETag", "\"e\""),
        _ => Answer::new(206, "hello"),
    });
    let ses = Vendor::secured(&signed, |_| {
        Answer::new(200, SENT).header("Content-Type", "text/xml")
    });
    let [at_s3, at_ses] = [&s3, &ses].map(|of| format!("localhost:{}", of.addr.port()));
    let (listen, spent, admin) = (port::own(), port::own(), port::own());
    let config = format!(
        "[server]\nupstream = \"none\"\nadmin_listen = \"{admin}\"\n[[egress]]\nname = \"aws\"\nlisten = \"{listen}\"\n\
         hosts = [\"{at_s3}\", \"{at_ses}\"]\nallow = [\"127.0.0.0/8\", \"::1\"]\nca_file = {:?}\nkey = \"aws:{{host}}\"\n\
         token = \"{TOKEN}\"\nrate = {{ limit = 5000, period = \"1s\" }}\n\
         [[egress]]\nname = \"spent\"\nlisten = \"{spent}\"\nupstream = \"https://{at_s3}\"\nkey = \"spent\"\nmax_wait = \"0s\"\n\
         ca_file = {:?}\nrate = {{ limit = 1, period = \"1h\" }}\n",
        ca.file(),
        ca.file()
    );
    let sidecar = Sidecar::run(&config);
    let mut python = Command::new("python3");
    python
        .env("PYTHONPATH", packages)
        .env("AWS_EC2_METADATA_DISABLED", "true");
    let proxy = format!("http://x:{TOKEN}@{listen}");
    let spent = format!("http://{spent}");
    python.args([
        "-c", SCRIPT, &proxy, &spent, &at_s3, &at_ses, SECRET, OBJECT,
    ]);
    let ran = ran(&mut python);
    assert_eq!(
        (ran.status, &*ran.out),
        (Some(0), "done\n"),
        "{}\n{}",
        ran.err,
        sidecar.log()
    );
    let calls: Vec<VendorCall> = s3.calls().into_iter().chain(ses.calls()).collect();
    for call in &calls {
        is_signed(call).unwrap();
        assert_eq!(call.header("proxy-authorization"), None);
    }
    let with = |method: &str| calls.iter().filter(|call| call.method() == method).count();
    assert_eq!([with("PUT"), with("GET"), with("POST")], [334, 334, 333]);
    assert!(s3.calls()[0].header("x-amz-checksum-sha256").is_some());
    // The judge sees what is changed by a letter.
    let mut changed = calls[0].clone();
    changed.head = changed.head.replacen("localhost", "Localhost", 1);
    assert!(is_signed(&changed).is_err());
    assert!(!sidecar.log().contains(TOKEN), "{}", sidecar.log());
}
